package windows_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/lab"
)

const (
	webIP    = "10.96.0.10" // of a Service with a port of TCP and one of UDP
	stickyIP = "10.96.0.11" // with session affinity
	faultyIP = "10.96.0.12" // with an endpoint that refuses connections
	cable    = "clients"    // the interface that gets these addresses
)

// userspaceNode is a node with Windows, with a client, and with servers in pods that answer with the
// addresses of the pods.
type userspaceNode struct {
	*agenttest.Node
	t         *testing.T
	system    *system
	path      string // of the program
	manifests string // path of their file
	proxy     *program
}

func newUserspaceNode(t *testing.T) *userspaceNode {
	t.Helper()
	needWine(t)
	n := &userspaceNode{Node: agenttest.NewNode(t, 8080, 5353), t: t, manifests: filepath.Join(t.TempDir(), "services.yaml"), path: buildExample(t, "manifestproxy")}
	n.system = startSystem(t, n.Do)
	n.system.serveNetsh(n.NS)
	return n
}

// flags are flags of the program.
func (n *userspaceNode) flags(more ...string) []string {
	return append([]string{"-backend", "userspace", "-netsh", "-interface", cable}, more...)
}

// start starts the program.
func (n *userspaceNode) start() {
	n.proxy = n.system.start(n.path, n.flags("-manifests", "Z:"+n.manifests, "-node", "node-1", "-node-ip", agenttest.NodeIP)...)
}

const webManifest = `
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: ` + webIP + `, ports: [
  {name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}, addressType: IPv4,
  ports: [{name: http, port: 8080}, {name: dns, port: 5353, protocol: UDP}], endpoints: [%s]}
---`

const otherManifests = `
{apiVersion: v1, kind: Service, metadata: {name: sticky}, spec: {clusterIP: ` + stickyIP + `, sessionAffinity: ClientIP, ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: sticky-1, labels: {kubernetes.io/service-name: sticky}}, addressType: IPv4,
  ports: [{port: 8080}], endpoints: [{addresses: [` + agenttest.Pod1IP + `]}, {addresses: [` + agenttest.Pod2IP + `]}]}
---
{apiVersion: v1, kind: Service, metadata: {name: faulty}, spec: {clusterIP: ` + faultyIP + `, ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: faulty-1, labels: {kubernetes.io/service-name: faulty}}, addressType: IPv4,
  ports: [{port: 8079}], endpoints: [{addresses: [` + agenttest.Pod1IP + `]}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: faulty-2, labels: {kubernetes.io/service-name: faulty}}, addressType: IPv4,
  ports: [{port: 8080}], endpoints: [{addresses: [` + agenttest.Pod2IP + `]}]}
`

// write replaces the manifests: without pods there is no Service web.
func (n *userspaceNode) write(pods ...string) {
	n.t.Helper()
	text := otherManifests
	if len(pods) > 0 {
		text = fmt.Sprintf(webManifest, "{addresses: ["+strings.Join(pods, "]}, {addresses: [")+"]}") + text
	}
	err := os.WriteFile(n.manifests+".new", []byte(text), 0o600)
	if err := errors.Join(err, os.Rename(n.manifests+".new", n.manifests)); err != nil {
		n.t.Error(err)
	}
}

// until waits until a condition holds, whose error says what is missing.
func (n *userspaceNode) until(condition func() error) {
	n.t.Helper()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(patience); ; <-again.C {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			n.t.Fatal(err)
		}
	}
}

// answers returns who answers connections to an address, and how often.
func (n *userspaceNode) answers(address string, times int) (map[string]int, error) {
	all := map[string]int{}
	for range times {
		answer, err := n.Ask(n.t.Context(), address)
		if err != nil {
			return nil, err
		}
		all[answer.Own.Addr().String()]++
	}
	return all, nil
}

// wantAnswers checks that this number of servers answers connections to an address, and all of them.
func (n *userspaceNode) wantAnswers(address string, servers int) {
	n.t.Helper()
	if got, err := n.answers(address, 20); err != nil || len(got) != servers {
		n.t.Errorf("20 connections to %s: answers %v, error %v, want %d servers", address, got, err, servers)
	}
}

// askUDP sends a datagram and returns the answer, from whatever address it comes: Wine binds sockets of
// UDP to all addresses, so that the kernel chooses the source of answers.
func (n *userspaceNode) askUDP(address string) (string, error) {
	c, err := n.Client.ListenPacket(n.t.Context(), "udp4", ":0")
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }() // Nothing is lost.
	if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", err
	}
	if _, err := c.WriteTo([]byte("who"), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(address))); err != nil {
		return "", err
	}
	line := make([]byte, 200)
	size, _, err := c.ReadFrom(line)
	if err != nil {
		return "", err
	}
	answer, err := lab.ParseAnswer(string(line[:size]))
	return answer.Own.Addr().String(), err
}

// wantAddresses waits until the interface has all of some addresses, or none of them.
func (n *userspaceNode) wantAddresses(want bool, addresses ...string) {
	n.t.Helper()
	n.until(func() error {
		for _, a := range addresses {
			if got, err := hasAddress(n.NS, cable, a); err != nil || got != want {
				return fmt.Errorf("the interface has %s: got %v, error %w, want %v", a, got, err, want)
			}
		}
		return nil
	})
}

// TestUserspace has manifestproxy serve real connections: with failover, with session affinity, and at
// a high rate while endpoints change. The addresses of Services come and go, also those of a process
// that was killed.
func TestUserspace(t *testing.T) {
	n := newUserspaceNode(t)
	n.write(agenttest.Pod1IP, agenttest.Pod2IP)
	n.start()
	for _, address := range []string{webIP, stickyIP, faultyIP} {
		n.until(func() error {
			_, err := n.Ask(t.Context(), address+":80")
			return err
		})
	}
	n.wantAnswers(webIP+":80", 2)
	n.wantAnswers(stickyIP+":80", 1)
	n.wantAnswers(faultyIP+":80", 1)
	n.until(func() error {
		answer, err := n.askUDP(webIP + ":53")
		if err == nil && answer != agenttest.Pod1IP && answer != agenttest.Pod2IP {
			err = fmt.Errorf("datagram: got answer %q, want that of a pod", answer)
		}
		return err
	})
	n.compareFloor()
	n.connectOften()

	n.write()
	n.wantAddresses(false, webIP)
	if answer, err := n.Ask(t.Context(), webIP+":80"); err == nil {
		t.Errorf("connection to a Service that was removed: got answer %+v, want an error", answer)
	}
	n.wantAnswers(stickyIP+":80", 1)
	n.proxy.kill()
	n.wantAddresses(true, stickyIP, faultyIP)
	if err := n.system.start(n.path, n.flags("-cleanup")...).cmd.Wait(); err != nil {
		t.Errorf("-cleanup: %v", err)
	}
	n.wantAddresses(false, stickyIP, faultyIP)
	n.wantAddresses(true, agenttest.NodeIP)
}

// Of the load: how many connections a second, for how long, how many at a time at most, and how many
// also a busy machine makes.
const (
	rate     = 500
	loadTime = 10 * time.Second
	atATime  = 64
	least    = 200
)

// Of the comparison with the least proxy: how often each of them gets a turn, for how long, and which
// part of its rate the program must reach.
const (
	turns      = 3
	turn       = 3 * time.Second
	leastRatio = 0.7
)

// connectOften makes new connections while the endpoints change. None must fail. A machine that is too
// slow for the rate makes fewer of them.
func (n *userspaceNode) connectOften() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	loaded := make(chan struct{})
	var changes sync.WaitGroup
	before := n.proxy.count(" changed=")
	changes.Go(func() {
		sets := [][]string{{agenttest.Pod1IP}, {agenttest.Pod2IP}, {agenttest.Pod1IP, agenttest.Pod2IP}}
		again := time.NewTicker(700 * time.Millisecond)
		defer again.Stop()
		for i := 0; ; i++ {
			select {
			case <-loaded:
				return
			case <-again.C:
				n.write(sets[i%len(sets)]...)
			}
		}
	})
	began := time.Now()
	answers, failures := n.load(ctx, webIP+":80", rate, loadTime)
	took := time.Since(began)
	close(loaded)
	changes.Wait()
	changed := n.proxy.count(" changed=") - before
	total := 0
	for _, count := range answers {
		total += count
	}
	n.t.Logf("%d connections in %v, %.0f a second, with %d changes; answers %v", total, took.Round(time.Millisecond), float64(total)/took.Seconds(), changed, answers)
	if len(failures) > 0 || total < least || len(answers) != 2 || changed < 3 {
		n.t.Errorf("got %d connections to %d servers during %d changes, want at least %d to 2 during 3; %d failures: %v",
			total, len(answers), changed, least, len(failures), errors.Join(failures[:min(len(failures), 5)]...))
	}
}

// load makes connections to an address, a number of them a second, or as many as possible if rate is 0. It
// returns the numbers of answers.
func (n *userspaceNode) load(ctx context.Context, address string, rate float64, duration time.Duration) (answers map[string]int, failures []error) {
	answers = map[string]int{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	due := make(chan struct{})
	for range atATime {
		asking.Go(func() {
			for range due {
				answer, err := n.Ask(ctx, address)
				mu.Lock()
				if err != nil {
					failures = append(failures, err)
				} else {
					answers[answer.Own.Addr().String()]++
				}
				mu.Unlock()
			}
		})
	}
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	began := time.Now()
	for made := 0.0; time.Since(began) < duration; <-again.C {
		for ; time.Since(began) < duration && (rate == 0 || made < time.Since(began).Seconds()*rate); made++ {
			due <- struct{}{}
		}
	}
	close(due)
	asking.Wait()
	return answers, failures
}

// compareFloor compares how many connections a second the program makes with those of the least proxy,
// by turns, so that both have the same share of a busy machine.
func (n *userspaceNode) compareFloor() {
	n.t.Helper()
	floor := agenttest.NodeIP + ":8081"
	n.system.start(build(n.t, "internal/peer", "./windows/testdata/floor"), floor, agenttest.Pod1IP+":8080", agenttest.Pod2IP+":8080")
	n.until(func() error {
		_, err := n.Ask(n.t.Context(), floor)
		return err
	})
	reached := map[string]float64{}
	for range turns {
		for _, address := range []string{floor, webIP + ":80"} {
			began := time.Now()
			answers, failures := n.load(n.t.Context(), address, 0, turn)
			if len(failures) > 0 {
				n.t.Errorf("connections to %s: %d failures: %v", address, len(failures), failures[0])
			}
			for _, count := range answers {
				reached[address] += float64(count) / time.Since(began).Seconds() / turns
			}
		}
	}
	ratio := reached[webIP+":80"] / reached[floor]
	n.t.Logf("connections a second, %d at a time: %.0f of the least proxy, %.0f of the program: %.2f", atATime, reached[floor], reached[webIP+":80"], ratio)
	if ratio < leastRatio {
		n.t.Errorf("connections a second: got %.2f of those of the least proxy, want at least %.2f", ratio, leastRatio)
	}
}
