package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables/expr"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// awaitReply sends datagrams by a socket until the wanted server answers.
func awaitReply(t *testing.T, c *lab.Conn, want string) {
	t.Helper()
	var got lab.Answer
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		got, err = c.Ask(ctx) // The kernel may report the ICMP error of an earlier datagram.
		cancel()
		if err == nil && got.Own.String() == want {
			return
		}
	}
	t.Fatalf("server that replies: got %+v, error %v, want %q", got, err, want)
}

// TestDatagramsFollowTheEndpoints checks that a client that sends datagrams all the time, from
// one port, reaches another endpoint when its endpoint was removed.
func TestDatagramsFollowTheEndpoints(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	path := filepath.Join(t.TempDir(), "dns.yaml")
	manifest := `{apiVersion: v1, kind: Service, metadata: {name: dns}, spec: {clusterIP: 10.96.0.53, ports: [{port: 53, protocol: UDP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: dns-1, labels: {kubernetes.io/service-name: dns}},
 addressType: IPv4, ports: [{name: "", port: 8053, protocol: UDP}], endpoints: [{addresses: [` + agenttest.Pod1IP + `], nodeName: node-1}]}
`
	write(t, path, manifest)
	p := n.start(t, flags(path)...)
	p.Await("msg=sync", "full=true", "ports=1")
	socket, err := lab.Dial(t.Context(), n.Client, "udp", "10.96.0.53:53")
	testenv.NoError(t, err)
	awaitReply(t, socket, agenttest.Pod1IP+":8053")
	write(t, path, replace(t, manifest, agenttest.Pod1IP, agenttest.Pod2IP))
	awaitReply(t, socket, agenttest.Pod2IP+":8053")
	if err := socket.Close(); err != nil {
		t.Error(err)
	}
	p.Terminate(stopped)
}

// TestDatagramsReachALaterService checks that a client that keeps its port reaches a Service that
// begins after the client has tried its address.
func TestDatagramsReachALaterService(t *testing.T) {
	t.Parallel()
	for _, flag := range [][]string{nil, {"-backend", "userspace", "-capture", "redirect"}, {"-backend", "userspace"}} {
		t.Run(strings.Join(flag, " "), func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			path := filepath.Join(t.TempDir(), "dns.yaml")
			manifest := `{apiVersion: v1, kind: Service, metadata: {name: dns}, spec: {clusterIP: 10.96.0.53, ports: [{port: 53, protocol: UDP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: dns-1, labels: {kubernetes.io/service-name: dns}},
 addressType: IPv4, ports: [{name: "", port: 8053, protocol: UDP}], endpoints: [{addresses: [` + agenttest.Pod1IP + `], nodeName: node-1}]}
`
			write(t, path, replace(t, manifest, "10.96.0.53", "10.96.0.54"))
			p := n.start(t, append(flags(path), flag...)...)
			p.Await("msg=sync", "full=true", "ports=1")
			socket, err := lab.Dial(t.Context(), n.Client, "udp", "10.96.0.53:53")
			testenv.NoError(t, err)
			for range 5 {
				_, _ = socket.Write([]byte("x")) // The kernel may report ICMP errors.
			}
			write(t, path, manifest)
			awaitReply(t, socket, agenttest.Pod1IP+":8053")
			if err := socket.Close(); err != nil {
				t.Error(err)
			}
			p.Terminate("msg=")
		})
	}
}

// kernel reads the tables of a network namespace.
type kernel struct {
	t    *testing.T
	conn *nfnetlink.Conn
}

func openKernel(t *testing.T, ns *netns.NS) kernel {
	t.Helper()
	return kernel{t: t, conn: netnstest.Open(t, ns, nfnetlink.Open)}
}

// addTable makes a table with a chain and a rule that counts packets, like another program.
func (k kernel) addTable(name string) {
	k.t.Helper()
	var b nfnetlink.Batch
	table := nfnetlink.Table{Family: nfnetlink.IPv4, Name: name}
	b.AddTable(table)
	b.AddChain(table, nfnetlink.Chain{Name: "prerouting", Base: nfnetlink.BaseChain{Type: "filter", Hook: nfnetlink.Prerouting}})
	rule := nft.Assembler{Family: table.Family}
	b.AddRule(table, "prerouting", rule.Encode(&expr.Counter{}), nfnetlink.AppendTag(nil, []byte("counts")))
	testenv.NoError(k.t, k.conn.Commit(k.t.Context(), &b))
}

// tables returns the names of all tables.
func (k kernel) tables() []string {
	k.t.Helper()
	var names []string
	for _, family := range []nfnetlink.Family{nfnetlink.IPv4, nfnetlink.IPv6} {
		var infos []nfnetlink.TableInfo
		testenv.NoError(k.t, k.conn.Tables(k.t.Context(), family, nfnetlink.Collect(&infos)))
		for _, info := range infos {
			names = append(names, info.Name)
		}
	}
	return names
}

// dump returns the chains and rules of an IPv4 table, with the kernel's handles, which change
// when a rule is added again.
func (k kernel) dump(name string) string {
	k.t.Helper()
	table := nfnetlink.Table{Family: nfnetlink.IPv4, Name: name}
	var chains []nfnetlink.Chain
	var rules []nfnetlink.RuleInfo
	testenv.NoError(k.t, k.conn.Chains(k.t.Context(), table, nfnetlink.Collect(&chains)))
	testenv.NoError(k.t, k.conn.Rules(k.t.Context(), table, nfnetlink.Collect(&rules)))
	out := fmt.Sprintf("chains %+v\n", chains)
	for i := range rules {
		out += fmt.Sprintf("rule %d of %s %q\n", rules[i].Handle, rules[i].Chain, rules[i].Userdata)
	}
	return out
}

// dial connects to the Service of the demo, until the test ends.
func (n network) dial(t *testing.T) *lab.Conn {
	t.Helper()
	c, err := lab.Dial(t.Context(), n.Client, "tcp", virtualIP)
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	wantAnswer(t, c)
	return c
}

func wantAnswer(t *testing.T, c *lab.Conn) {
	t.Helper()
	if _, err := c.Ask(t.Context()); err != nil {
		t.Errorf("answer on an open connection: %v", err)
	}
}

// TestDrain checks that a program that gets a signal waits for its connections while its
// successor accepts new ones, and that it resets connections that do not end in time.
func TestDrain(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	begin := func(drain string) *agenttest.Program {
		p := n.start(t, flags("demo", "-backend", "userspace", "-drain", drain)...)
		p.Await("msg=sync", "full=true", "ports=1", "operations=")
		return p
	}
	p := begin("1h")
	c := n.dial(t)
	p.Signal(syscall.SIGTERM)
	p.Await("waiting for connections to end", "atMost=1h0m0s")
	wantAnswer(t, c)
	successor := begin("100ms")
	late := n.dial(t)
	wantAnswer(t, c)
	_ = c.Close()
	if status := p.Wait(); status != 0 || p.Count(stopped) != 1 || p.Count("resetting") != 0 {
		t.Errorf("after its connections have ended: got status %d, want 0, %q and no reset", status, stopped)
	}
	wantAnswer(t, late)
	successor.Terminate(stopped)
	if successor.Count("resetting remaining connections") != 1 {
		t.Error("log: got no line about a reset of connections, want one")
	}
	if _, err := late.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got error %v, want %v", err, syscall.ECONNRESET)
	}

	p = begin("1h")
	c = n.dial(t)
	p.Signal(syscall.SIGTERM)
	p.Await("waiting for connections to end")
	p.Signal(syscall.SIGTERM)
	if status := p.Wait(); status != 0 || p.Count("resetting remaining connections") != 1 {
		t.Errorf("after a second signal: got status %d, want 0 and a reset of connections", status)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got error %v, want %v", err, syscall.ECONNRESET)
	}
	n.wantRun(t, []string{"-cleanup", "-backend", "userspace"}, 0, "all rules are removed")
}

// TestDrainLoopback checks that connections to node ports at loopback addresses are waited for, too.
func TestDrainLoopback(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	p := n.start(t, flags("demo", "-backend", "userspace", "-drain", "1h", "-nodeport-addresses", "localhost")...)
	var c *lab.Conn
	for end := time.Now().Add(patience); c == nil; time.Sleep(10 * time.Millisecond) {
		var err error
		if c, err = lab.Dial(t.Context(), n.NS, "tcp", "127.0.0.1:30080"); err != nil && time.Now().After(end) {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = c.Close() })
	wantAnswer(t, c)
	p.Signal(syscall.SIGTERM)
	p.Await("waiting for connections to end", "atMost=1h0m0s")
	wantAnswer(t, c)
	_ = c.Close()
	if status := p.Wait(); status != 0 || p.Count("resetting") != 0 {
		t.Errorf("after its connections have ended: got status %d, want 0 and no reset", status)
	}
}
