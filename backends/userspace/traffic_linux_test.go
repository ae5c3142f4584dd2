package userspace_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

const (
	clientAddr = "10.244.1.10"
	podAddr    = "10.244.2.10"
	podServer  = podAddr + ":8080"
)

// network is a client and a pod with a node between them. Packets to virtual addresses that the
// node does not capture go to the pod, which has these addresses, too.
type network struct{ client, node, pod *netns.NS }

func newNetwork(t *testing.T) network {
	t.Helper()
	n := network{netnstest.NewNS(t), netnstest.NewNS(t), netnstest.NewNS(t)}
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	err := errors.Join(
		netns.Link(netns.End{NS: n.node, Name: "clients"}, netns.End{NS: n.client, Name: "eth0"}),
		netns.Link(netns.End{NS: n.node, Name: "pods"}, netns.End{NS: n.pod, Name: "eth0"}),
		n.node.Forward(),
		n.node.AddAddress("clients", prefix("10.244.1.1/24")),
		n.node.AddAddress("pods", prefix("10.244.2.1/24")),
		n.node.AddRoute(netns.Route{To: prefix("10.96.0.0/16"), Link: "pods", Via: addr(podAddr)}),
		n.client.AddAddress("eth0", prefix(clientAddr+"/24")),
		n.client.AddRoute(netns.Route{To: prefix("0.0.0.0/0"), Link: "eth0", Via: addr("10.244.1.1")}),
		n.pod.AddAddress("eth0", prefix(podAddr+"/24")),
		n.pod.AddAddress("eth0", prefix("10.96.0.1/32")),
		n.pod.AddAddress("eth0", prefix("10.96.0.2/32")),
		n.pod.AddRoute(netns.Route{To: prefix("0.0.0.0/0"), Link: "eth0", Via: addr("10.244.2.1")}),
	)
	testenv.NoError(t, err)
	return n
}

// serve starts a server in the pod, which sends its own address and the client's, and then
// echoes.
func (n network) serve(t *testing.T, at string) {
	t.Helper()
	l, err := n.pod.Listen(t.Context(), "tcp", at)
	testenv.NoError(t, err)
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			wg.Go(func() {
				defer stop()
				defer func() { _ = c.Close() }()
				_, _ = fmt.Fprintf(c, "%s %s\n", at, c.RemoteAddr())
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

// ask connects from the client, and returns the server's address and the client's address that
// the server has seen. The connection stays open. A lost packet is an error.
func (n network) ask(t *testing.T, to string) (server string, peer netip.AddrPort, c net.Conn, err error) {
	t.Helper()
	return n.askFor(t, to, 30*time.Second)
}

// askFor is ask with a timeout for connecting.
func (n network) askFor(t *testing.T, to string, patience time.Duration) (server string, peer netip.AddrPort, c net.Conn, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if c, err = n.client.Dial(ctx, "tcp", to); err != nil {
		return "", peer, nil, err
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := checkRetransmits(c); err != nil {
		return "", peer, c, err
	}
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	var line strings.Builder
	for b := make([]byte, 1); line.Len() < 100; line.Write(b) {
		if _, err := io.ReadFull(c, b); err != nil {
			return "", peer, c, err
		}
		if b[0] == '\n' {
			break
		}
	}
	server, text, _ := strings.Cut(line.String(), " ")
	peer, err = netip.ParseAddrPort(text)
	return server, peer, c, err
}

func (n network) wantAnswer(t *testing.T, to string) (netip.AddrPort, net.Conn) {
	t.Helper()
	server, peer, c, err := n.ask(t, to)
	if err != nil {
		t.Fatalf("connection to %s: got error %v, want none", to, err)
	}
	if server != podServer {
		t.Fatalf("connection to %s: got server %s, want %s", to, server, podServer)
	}
	return peer, c
}

// eventually waits, for a bounded time, until a condition holds.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// start starts a backend on the node, which is closed when the test ends.
func (n network) start(t *testing.T, o userspace.Options) *userspace.Backend {
	t.Helper()
	return netnstest.Open(t, n.node, func() (*userspace.Backend, error) { return userspace.New(o) })
}

// snapshot returns a snapshot with a service port at an address, whose endpoint is the pod.
func snapshot(at string) proxy.Snapshot {
	p := snapshots.Port("web", at, podServer)
	p.Name.Name = at
	return proxy.NewSnapshot(&proxy.Node{Name: "node", Addresses: snapshots.Addrs("10.244.1.1")}, p)
}

func apply(t *testing.T, b *userspace.Backend, s proxy.Snapshot) {
	t.Helper()
	testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, s))
}

const one, two = "10.96.0.1:80", "10.96.0.2:80"

// After connections through the backend, a client can connect to the endpoint directly, from any
// port: the state of the backend's own connections must not match the client's packets.
func TestDirectConnectionsPass(t *testing.T) {
	t.Parallel()
	forCaptures(t, testDirectConnections)
}

// forCaptures runs a test with each capture that programs the kernel.
func forCaptures(t *testing.T, test func(*testing.T, userspace.Capture)) {
	t.Helper()
	for _, c := range []userspace.Capture{userspace.TPROXY, userspace.Redirect} {
		t.Run(c.String(), func(t *testing.T) { test(t, c) })
	}
}

func testDirectConnections(t *testing.T, capture userspace.Capture) {
	t.Helper()
	n := newNetwork(t)
	n.serve(t, podServer)
	apply(t, n.start(t, userspace.Options{Capture: capture}), snapshot(one))
	for range 2000 {
		peer, c := n.wantAnswer(t, one)
		if capture == userspace.TPROXY {
			if peer.Addr().String() != clientAddr {
				t.Fatalf("address that the endpoint sees: got %v, want the client's, %s", peer, clientAddr)
			}
			if p := peer.Port(); p < 10_240 || p >= 30_240 {
				t.Fatalf("port that the endpoint sees: got %d, want 10240 to 30239", p)
			}
		}
		_ = c.Close() // the node closes first, and so keeps the connection in TIME_WAIT
		_, c = n.wantAnswer(t, podServer)
		_ = c.Close()
	}
}

// While no backend runs, connections to a Service are dropped, even if a pod or a program
// of the node has the address.
func TestConnectionsAreDroppedWithoutBackend(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	n.serve(t, one)
	if server, _, _, err := n.ask(t, one); err != nil || server != one {
		t.Fatalf("before the first Apply: got %q and error %v, want %s itself", server, err, one)
	}
	b := n.start(t, userspace.Options{})
	apply(t, b, snapshot(one))
	n.wantAnswer(t, one)
	testenv.NoError(t, b.Close())
	n.wantSilence(t, one)
	b = n.start(t, userspace.Options{})
	apply(t, b, snapshot(one))
	if got := b.Operations(); got != 0 {
		t.Errorf("operations to adopt the objects: got %d, want 0", got)
	}
	n.wantAnswer(t, one)
	testenv.NoError(t, b.Cleanup(t.Context()))
	if server, _, _, err := n.ask(t, one); err != nil || server != one {
		t.Errorf("after Cleanup: got %q and error %v, want %s itself", server, err, one)
	}
}

// Established connections outlive their Service for the grace period, although the kernel no
// longer captures new ones.
func TestConnectionsOutliveTheirService(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	// As on some routers: the kernel does not look up sockets before it routes.
	testenv.NoError(t, n.node.Sysctl("net/ipv4/ip_early_demux", "0"))
	b := n.start(t, userspace.Options{Timeouts: userspace.Timeouts{Drain: 5 * time.Second}})
	apply(t, b, snapshot(one))
	_, c := n.wantAnswer(t, one)
	apply(t, b, snapshot(two))
	for range 3 {
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatalf("within the grace period: got error %v, want none", err)
		}
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the grace period: got error %v, want a closed connection", err)
	}
	n.wantAnswer(t, two)
}

// Cleanup resets all connections at once.
func TestCleanupEndsConnections(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	b := n.start(t, userspace.Options{})
	apply(t, b, snapshot(one))
	_, c := n.wantAnswer(t, one)
	testenv.NoError(t, b.Cleanup(t.Context()))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after Cleanup: got error %v, want %v", err, syscall.ECONNRESET)
	}
	apply(t, b, snapshot(one))
	n.wantAnswer(t, one)
}

func TestInvalidOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []userspace.Options{{Connections: -1}, {Sessions: -1}, {AffinityTotal: -1}, {Families: []v1.IPFamily{v1.IPv4Protocol, "IPv5"}}} {
		b, err := userspace.New(o)
		if err == nil {
			_ = b.Close()
			t.Errorf("%+v: got no error, want one", o)
		}
	}
}

func TestInstancesAreDisjoint(t *testing.T) { forCaptures(t, testInstances) }

func testInstances(t *testing.T, c userspace.Capture) {
	t.Helper()
	n := newNetwork(t)
	n.serve(t, podServer)
	a := n.start(t, userspace.Options{Capture: c})
	b := n.start(t, userspace.Options{Capture: c, Identity: backends.Identity{Name: "another", Mark: 0x10000}})
	apply(t, a, snapshot(one))
	apply(t, b, snapshot(two))
	n.wantAnswer(t, one)
	n.wantAnswer(t, two)
	apply(t, a, snapshot(one)) // a full apply
	n.wantAnswer(t, two)
	testenv.NoError(t, a.Cleanup(t.Context()))
	n.wantAnswer(t, two)
	if b.Drifted(t.Context()) {
		t.Error("Drifted after a commit to the tables of another identity: got true, want false")
	}
	before := b.Operations()
	apply(t, b, snapshot(two))
	if got := b.Operations() - before; got != 0 {
		t.Errorf("operations after the other instance's Cleanup: got %d, want 0", got)
	}
	if b.Drifted(t.Context()) {
		t.Error("Drifted after a resync: got true, want false")
	}
}

// A second process with the same identity gets an error that says the cause and what to do. It
// does not disturb the first one, and can replace it after that has ended.
func TestSecondProcessGetsError(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.serve(t, podServer)
		o := userspace.Options{Capture: c, Identity: backends.Identity{Name: "twice"}}
		first, second := n.start(t, o), n.start(t, o)
		apply(t, first, snapshot(one))
		err := second.Apply(t.Context(), proxy.Snapshot{}, snapshot(two))
		if !errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, proxy.ErrUnsupported) {
			t.Errorf("with the addresses in use: got error %v, want one that is %v", err, syscall.EADDRINUSE)
		}
		for _, want := range []string{`another backend with the identity "twice"`, "Options.Identity", "Options.Port"} {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("with the addresses in use: got error %v, want one that contains %s", err, want)
			}
		}
		n.wantAnswer(t, one)
		testenv.NoError(t, first.Close())
		apply(t, second, snapshot(two))
		n.wantAnswer(t, two)
	})
}
