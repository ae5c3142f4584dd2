package userspace_test

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// startOnAddresses starts a backend on the node that adds addresses to a link.
func (n network) startOnAddresses(t *testing.T, link string) *userspace.OnAddresses {
	t.Helper()
	o := userspace.Options{}
	o.Addresses.State = filepath.Join(t.TempDir(), "addresses")
	return netnstest.Open(t, n.node, func() (*userspace.OnAddresses, error) { return userspace.NewOnAddresses(o, link) })
}

// portAt returns a service port with one frontend, and endpoints.
func portAt(name string, protocol v1.Protocol, f proxy.Frontend, to ...string) *proxy.ServicePort {
	p := snapshots.Port(f.Addr.String(), f.Addr.String(), to...)
	p.Name.Name, p.Name.Port, p.Name.Protocol = name, "", protocol
	p.Frontends[0].Kind = f.Kind
	return p
}

func at(kind proxy.FrontendKind, addr string) proxy.Frontend {
	return proxy.Frontend{Kind: kind, Addr: netip.MustParseAddrPort(addr)}
}

// firstLine connects from a namespace, and returns the first words that it gets.
func firstLine(t *testing.T, from *netns.NS, to string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := from.Dial(ctx, "tcp", to)
	if err != nil {
		return "", err
	}
	defer c.Close() //nolint:errcheck // what matters was read
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	return strings.TrimSpace(string(buf[:n])), err
}

// Real packets reach a Service at an address that was added to an interface: from a client beyond
// the node and from the node itself, at a ClusterIP and at node ports.
func TestAddressesOnALink(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	b := n.startOnAddresses(t, "lo")
	node := &proxy.Node{Name: "node", Addresses: snapshots.Addrs("10.244.1.1", "203.0.113.1")}
	node.NodePorts.All = true
	s := proxy.NewSnapshot(node,
		portAt("web", v1.ProtocolTCP, at(proxy.ClusterIP, one), podServer),
		portAt("node", v1.ProtocolTCP, at(proxy.NodePort, "0.0.0.0:30080"), podServer),
		portAt("loop", v1.ProtocolTCP, at(proxy.ClusterIP, two), one))
	testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, s))
	for _, to := range []string{one, "10.244.1.1:30080"} {
		if peer, _ := n.wantAnswer(t, to); peer.Addr() != netip.MustParseAddr("10.244.2.1") {
			t.Errorf("%s: the endpoint saw %v, want the address of the node", to, peer)
		}
		if got, err := firstLine(t, n.node, to); err != nil || !strings.HasPrefix(got, podServer+" ") {
			t.Errorf("%s from the node: got %q and error %v, want %s", to, got, err, podServer)
		}
	}
	if got, err := firstLine(t, n.client, two); err == nil {
		t.Errorf("an endpoint that is a frontend: got %q, want an error", got)
	}
	if got, err := firstLine(t, n.client, "10.96.0.1:81"); err == nil {
		t.Errorf("another port: got %q, want an error", got)
	}
	if b.Drifted(t.Context()) {
		t.Error("Drifted: got true, want false")
	}
	// The second address of the node was missing. Now it serves node ports, too.
	testenv.NoError(t, n.node.AddAddress("clients", netip.MustParsePrefix("203.0.113.1/32")))
	if !b.Drifted(t.Context()) {
		t.Error("with another address of the node: Drifted: got false, want true")
	}
	testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, s))
	n.wantAnswer(t, "203.0.113.1:30080")
	testenv.NoError(t, b.Cleanup(t.Context()))
	n.serve(t, one) // the address is that of another host again
	if server, _, _, err := n.ask(t, one); err != nil || server != one {
		t.Errorf("after Cleanup: got server %q and error %v, want %s itself", server, err, one)
	}
}

// Answers to datagrams have the address of the frontend.
func TestDatagramsOnALink(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	c, err := n.pod.ListenPacket(t.Context(), "udp4", podServer)
	testenv.NoError(t, err)
	defer c.Close() //nolint:errcheck // it ends the server
	go func() {
		buf := make([]byte, 100)
		for {
			k, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(buf[:k], from)
		}
	}()
	b := n.startOnAddresses(t, "lo")
	node := &proxy.Node{Name: "node", Addresses: snapshots.Addrs("10.244.1.1")}
	if err := b.Apply(t.Context(), proxy.Snapshot{}, proxy.NewSnapshot(node, portAt("dns", v1.ProtocolUDP, at(proxy.ClusterIP, one), podServer))); err != nil {
		t.Fatal(err)
	}
	for _, from := range []*netns.NS{n.client, n.node} {
		conn, err := from.Dial(t.Context(), "udp", one) // receives from that address only
		testenv.NoError(t, err)
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		buf := make([]byte, 100)
		_, err = io.WriteString(conn, "hello")
		k, failed := conn.Read(buf)
		if err = errors.Join(err, failed, conn.Close()); err != nil || string(buf[:k]) != "hello" {
			t.Errorf("got %q and error %v, want the same datagram", buf[:k], err)
		}
	}
}

// An address that was just added cannot be listened at while the system looks for it on the link.
// The backend waits for that, once for all addresses.
func TestAddressesThatAreNotUsableAtOnce(t *testing.T) {
	n := newNetwork(t)
	for _, sysctl := range []string{"accept_dad", "dad_transmits"} {
		testenv.NoError(t, n.node.Sysctl("net/ipv6/conf/clients/"+sysctl, "1"))
	}
	b := n.startOnAddresses(t, "clients")
	var ports []*proxy.ServicePort
	for _, a := range []string{"[fd00:96::1]:80", "[fd00:96::2]:80", "[fd00:96::3]:80"} {
		ports = append(ports, portAt(a, v1.ProtocolTCP, at(proxy.ClusterIP, a), "[fd00::5]:80"))
	}
	start := time.Now()
	testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, proxy.NewSnapshot(&proxy.Node{Name: "node"}, ports...)))
	if took := time.Since(start); took < 100*time.Millisecond {
		t.Errorf("Apply took %v, want it to wait for the addresses", took)
	}
	// The endpoint does not exist: the connection is made, and reset.
	if _, err := firstLine(t, n.node, "[fd00:96::3]:80"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got error %v, want %v", err, syscall.ECONNRESET)
	}
}
