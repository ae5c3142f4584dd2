package userspace_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// loopbackServices returns Services of a node whose node ports answer at some loopback addresses, and at no other
// address.
func loopbackServices(ranges string, ports ...*proxy.ServicePort) proxy.Snapshot {
	return proxy.NewSnapshot(&proxy.Node{
		Name: "node", Addresses: snapshots.Addrs("10.244.1.1"), NodePorts: proxy.NodePortAddresses{Loopback: snapshots.Prefixes(strings.Fields(ranges)...)},
	}, ports...)
}

// nodePort returns a service port with a node port, and the pod as its endpoint.
func nodePort(name, at string, to ...string) *proxy.ServicePort {
	if len(to) == 0 {
		to = []string{endpointOf(at)}
	}
	return snapshots.Port(name, at, to...)
}

// startLoopback starts a backend for loopback addresses. The network asks from the node.
func startLoopback(t *testing.T, o userspace.Options) (network, *userspace.Backend) {
	t.Helper()
	n := newNetwork(t).from("node")
	o.Capture = userspace.Loopback
	return n, n.start(t, o)
}

// Node ports answer at the loopback addresses that are selected, of both families, TCP and UDP, and
// nowhere else.
func TestLoopback(t *testing.T) {
	t.Parallel()
	n, b := startLoopback(t, userspace.Options{})
	apply(t, b, loopbackServices("127.0.0.0/8 127.0.0.7/32 ::1/128",
		nodePort("web", "0.0.0.0:30080"), nodePort("web6", "[::]:30080"), nodePort("dns/UDP", "0.0.0.0:30053"), nodePort("dns6/UDP", "[::]:30053"),
		none("0.0.0.0:30081"), web(one)))
	for _, at := range []string{"127.0.0.1:30080", "127.0.0.7:30080", "[::1]:30080"} {
		n.wantAnswer(t, at)
	}
	n.bound("127.0.0.1:0").wantFlow(t, "udp", "127.0.0.1:30053", podServer)
	n.bound("[::1]:0").wantFlow(t, "udp", "[::1]:30053", podServer6)
	for _, to := range []string{"127.0.0.2:30080", "127.0.0.1:30081", "10.244.1.1:30080", "[fd00:2::1]:30080"} {
		n.wantRefused(t, to)
	}
	n.from("client").wantRefused(t, "10.244.1.1:30080")
	if got := b.Abilities().Operations(); got != 6 {
		t.Errorf("operations: got %d, want 6 listeners opened", got)
	}
	if four, six := b.Listeners(v1.IPv4Protocol), b.Listeners(v1.IPv6Protocol); four != 4 || six != 2 {
		t.Errorf("listeners: got %d of IPv4 and %d of IPv6, want 4 and 2", four, six)
	}
	testenv.NoError(t, b.Cleanup(t.Context()))
	n.wantRefused(t, "127.0.0.1:30080")
}

// wantOneFailed checks that an Apply has failed for one service port alone, with a text.
func wantOneFailed(t *testing.T, err error, p *proxy.ServicePort, texts ...string) {
	t.Helper()
	failed, _ := errors.AsType[proxy.PortErrors](err)
	if failed[p.Name] == nil || len(failed) != 1 {
		t.Fatalf("got error %v, want one of %v alone", err, p.Name)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("got error %v, want one with %q", err, text)
		}
	}
}

// A node port of SCTP that would answer at a loopback address is an error of its service port alone.
func TestLoopbackSCTP(t *testing.T) {
	t.Parallel()
	n, b := startLoopback(t, userspace.Options{})
	sctp := nodePort("sctp/SCTP", "0.0.0.0:30080")
	ports := []*proxy.ServicePort{sctp, nodePort("web", "0.0.0.0:30080"), snapshots.With(none("0.0.0.0:30081"), ofProtocol(v1.ProtocolSCTP))}
	at6 := loopbackServices("::1/128", ports...)
	apply(t, b, at6)
	err := b.Apply(t.Context(), at6, loopbackServices("127.0.0.1/32", ports...))
	wantOneFailed(t, err, sctp, "SCTP is not supported")
	n.wantAnswer(t, "127.0.0.1:30080")
}

// With the sysctl route_localnet, which kube-proxy sets and leaves, packets from other machines can get
// to loopback addresses. Node ports do not answer them; a socket of another program does.
func TestLoopbackIsLocal(t *testing.T) {
	t.Parallel()
	n, b := startLoopback(t, userspace.Options{})
	testenv.NoError(t, n.node().Sysctl("net/ipv4/conf/all/route_localnet", "1"))
	n.nft(t, `table ip t { chain c { type nat hook prerouting priority -100
		tcp dport 9080 dnat to 127.0.0.1:30080; udp dport 9053 dnat to 127.0.0.1:30053; tcp dport 9099 dnat to 127.0.0.1:30099
	}; }`)
	n.Serve("node", "other", 30099)
	apply(t, b, loopbackServices("127.0.0.0/8", nodePort("web", "0.0.0.0:30080"), nodePort("dns/UDP", "0.0.0.0:30053")))
	n.wantAnswer(t, "127.0.0.1:30080")
	client := n.from("client")
	client.wantServer(t, "10.244.1.1:9099", "127.0.0.1:30099")
	if a, _, err := client.askFor(t, "10.244.1.1:9080", 2*time.Second); err == nil {
		t.Errorf("node port at a loopback address, from another machine: got an answer of %v, want none", a.Own)
	}
	c := client.flow(t, "10.244.1.1:9053")
	send(t, c, "?")
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	if got, err := c.Read(make([]byte, 100)); err == nil {
		t.Errorf("datagram from another machine: got an answer of %d bytes, want none", got)
	}
}

// A port that another program has is an error of that service port alone, also if the same Apply
// changes others; once it is free, the node port answers.
func TestLoopbackPortInUse(t *testing.T) {
	t.Parallel()
	n, _ := startLoopback(t, userspace.Options{})
	const ranges = "127.0.0.0/8 127.0.0.7/32"
	for _, at := range []string{"127.0.0.1:30080", "0.0.0.0:30080"} {
		taken, err := n.node().Listen(t.Context(), "tcp4", at)
		testenv.NoError(t, err)
		b := n.start(t, userspace.Options{Capture: userspace.Loopback})
		before := loopbackServices(ranges, nodePort("b", "0.0.0.0:30082"))
		apply(t, b, before)
		inUse := nodePort("web", "0.0.0.0:30080")
		next := loopbackServices(ranges, nodePort("a", "0.0.0.0:30081"), nodePort("b", "0.0.0.0:30083"), inUse)
		err = b.Apply(t.Context(), before, next)
		wantOneFailed(t, err, inUse, "127.0.0.1:30080/TCP", "another program of the node listens there")
		held := before.Achieved(next, err)
		for _, to := range []string{"127.0.0.1:30081", "127.0.0.7:30083"} {
			n.wantAnswer(t, to)
		}
		for _, to := range []string{"127.0.0.1:30082", "127.0.0.7:30082"} {
			n.wantRefused(t, to)
		}
		testenv.NoError(t, taken.Close())
		testenv.NoError(t, b.Apply(t.Context(), held, next))
		n.wantAnswer(t, "127.0.0.1:30080")
		testenv.NoError(t, b.Close())
		n.wantRefused(t, "127.0.0.1:30080")
	}
}

// A node port that moves to another Service, changes its protocol or its number answers as its Service
// says, and connections of the former Service go on.
func TestLoopbackMoves(t *testing.T) {
	t.Parallel()
	n, b := startLoopback(t, userspace.Options{})
	var held proxy.Snapshot
	next := func(ports ...*proxy.ServicePort) {
		t.Helper()
		s := loopbackServices("127.0.0.0/8", ports...)
		testenv.NoError(t, b.Apply(t.Context(), held, s))
		held = s
	}
	next(nodePort("a", "0.0.0.0:30080"))
	_, open := n.wantAnswer(t, "127.0.0.1:30080")
	next(nodePort("b", "0.0.0.0:30080", otherPod), nodePort("a", "0.0.0.0:30081"))
	n.wantServer(t, "127.0.0.1:30080", otherPod)
	n.wantAnswer(t, "127.0.0.1:30081")
	if got := b.Abilities().Operations(); got != 2 {
		t.Errorf("operations: got %d, want 2, as the listener of a node port that moves stays", got)
	}
	if _, err := open.Ask(t.Context()); err != nil {
		t.Errorf("an open connection: got error %v, want an answer", err)
	}
	next(snapshots.With(none("0.0.0.0:30080"), func(p *proxy.ServicePort) { p.Name = snapshots.Name("b") }), nodePort("a/UDP", "0.0.0.0:30081"))
	n.wantRefused(t, "127.0.0.1:30080")
	n.wantRefused(t, "127.0.0.1:30081")
	n.bound("127.0.0.1:0").wantFlow(t, "udp", "127.0.0.1:30081", podServer)
}

// Processes of the node share their loopback addresses, so none of these is the address of one client:
// connections and sessions have the whole limit, of which one service port leaves a quarter to others.
func TestLoopbackLimits(t *testing.T) {
	t.Parallel()
	n, b := startLoopback(t, userspace.Options{Connections: 16, Sessions: 16})
	apply(t, b, loopbackServices("127.0.0.1/32",
		nodePort("a", "0.0.0.0:30080"), nodePort("b", "0.0.0.0:30081"), nodePort("c/UDP", "0.0.0.0:30080"), nodePort("d/UDP", "0.0.0.0:30081")))
	for i := range 16 {
		at := "127.0.0.1:30080"
		if i >= 12 { // the quarter that the first service port leaves
			at = "127.0.0.1:30081"
		}
		n.wantAnswer(t, at)
		n.bound("127.0.0.1:0").wantFlow(t, "udp", at, podServer)
	}
	if s := b.Abilities().CountConnections(); s.Connections != 16 || s.Sessions != 16 || s.Crowded != 0 {
		t.Errorf("got %d connections, %d sessions and %d crowded, want 16, 16 and 0", s.Connections, s.Sessions, s.Crowded)
	}
}
