package userspace_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// loopbackNode is a node whose node ports answer at some loopback addresses, and at no other address.
func loopbackNode(ranges ...string) *proxy.Node {
	return &proxy.Node{Name: "node", Addresses: snapshots.Addrs("10.244.1.1"), NodePorts: proxy.NodePortAddresses{Loopback: snapshots.Prefixes(ranges...)}}
}

// nodePortOf is a service port with a node port.
func nodePortOf(name string, protocol v1.Protocol, at string, to ...string) *proxy.ServicePort {
	return snapshots.Port(name+"/"+string(protocol), at, to...)
}

// dualStack adds addresses of IPv6 to the network.
func (n network) dualStack(t *testing.T) {
	t.Helper()
	prefix := netip.MustParsePrefix
	if err := errors.Join(n.node.AddAddress("pods", prefix("fd00:2::1/64")), n.pod.AddAddress("eth0", prefix("fd00:2::10/64"))); err != nil {
		t.Fatal(err)
	}
}

// onNode returns the network with the node as the client.
func (n network) onNode() network { return n.from(n.node) }

// wantRefused connects, and wants that the host refuses.
func (n network) wantRefused(t *testing.T, to string) {
	t.Helper()
	if server, _, _, err := n.askFor(t, to, 5*time.Second); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("connection to %s: got %q and error %v, want a refusal", to, server, err)
	}
}

// Node ports answer at the loopback addresses that are selected, of both families, TCP and UDP, and
// nowhere else. Endpoints see the node.
func TestLoopback(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.dualStack(t)
	n.serve(t, podServer)
	n.serve(t, "[fd00:2::10]:8080")
	for _, at := range []string{podServer, "[fd00:2::10]:8080"} {
		n.servePeerAddress(t, at)
	}
	node := loopbackNode("127.0.0.0/8", "127.0.0.7/32", "::1/128")
	s := proxy.NewSnapshot(
		node,
		nodePortOf("web", v1.ProtocolTCP, "0.0.0.0:30080", podServer), nodePortOf("web6", v1.ProtocolTCP, "[::]:30080", "[fd00:2::10]:8080"),
		nodePortOf("dns", v1.ProtocolUDP, "0.0.0.0:30053", podServer), nodePortOf("dns6", v1.ProtocolUDP, "[::]:30053", "[fd00:2::10]:8080"),
		nodePortOf("none", v1.ProtocolTCP, "0.0.0.0:30081"),
		portAt("cluster", v1.ProtocolTCP, at(proxy.ClusterIP, one), podServer),
	)
	b := n.start(t, userspace.Options{Capture: userspace.Loopback})
	apply(t, b, s)
	local := n.onNode()
	for to, want := range map[string]string{"127.0.0.1:30080": "10.244.2.1", "127.0.0.7:30080": "10.244.2.1", "[::1]:30080": "fd00:2::1"} {
		if peer, _ := local.wantAnswerOf(t, to); peer.Addr().String() != want {
			t.Errorf("address that the endpoint sees of a client of %s: got %v, want %s", to, peer, want)
		}
	}
	for to, want := range map[string]string{"127.0.0.1:30053": "10.244.2.1", "[::1]:30053": "fd00:2::1"} {
		if got := local.peerSeen(t, to); !strings.Contains(got, want) {
			t.Errorf("address that the endpoint sees of datagrams to %s: got %q, want %s", to, got, want)
		}
	}
	for _, to := range []string{"127.0.0.2:30080", "127.0.0.1:30081", "10.244.1.1:30080", "[fd00:2::1]:30080"} {
		local.wantRefused(t, to)
	}
	n.wantRefused(t, "10.244.1.1:30080")
	if got := b.Operations(); got != 6 {
		t.Errorf("operations: got %d, want 6 listeners opened", got)
	}
	if four, six := b.Listeners(v1.IPv4Protocol), b.Listeners(v1.IPv6Protocol); four != 4 || six != 2 {
		t.Errorf("listeners: got %d of IPv4 and %d of IPv6, want 4 and 2", four, six)
	}
	testenv.NoError(t, b.Cleanup(t.Context()))
	local.wantRefused(t, "127.0.0.1:30080")
}

// A node port of SCTP that would answer at a loopback address is an error of its service port alone.
func TestLoopbackSCTP(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	sctp := nodePortOf("sctp", v1.ProtocolSCTP, "0.0.0.0:30080", podServer)
	ports := []*proxy.ServicePort{sctp, nodePortOf("web", v1.ProtocolTCP, "0.0.0.0:30080", podServer), nodePortOf("none", v1.ProtocolSCTP, "0.0.0.0:30081")}
	b := n.start(t, userspace.Options{Capture: userspace.Loopback})
	at6 := proxy.NewSnapshot(loopbackNode("::1/128"), ports...)
	apply(t, b, at6)
	err := b.Apply(t.Context(), at6, proxy.NewSnapshot(loopbackNode("127.0.0.1/32"), ports...))
	failed, _ := errors.AsType[proxy.PortErrors](err)
	if failed[sctp.Name] == nil || len(failed) != 1 || !strings.Contains(err.Error(), "SCTP is not supported") {
		t.Errorf("SCTP at a loopback address: got error %v, want one of %v alone", err, sctp.Name)
	}
	n.onNode().wantAnswer(t, "127.0.0.1:30080")
}

// wantAnswerOf connects, and returns which client the server has seen.
func (n network) wantAnswerOf(t *testing.T, to string) (netip.AddrPort, net.Conn) {
	t.Helper()
	_, peer, c, err := n.ask(t, to)
	if err != nil {
		t.Fatalf("connection to %s: got error %v, want none", to, err)
	}
	return peer, c
}

// With the sysctl route_localnet, which kube-proxy sets and leaves, packets from other machines can get
// to loopback addresses. Node ports do not answer them; a socket of another program does.
func TestLoopbackIsLocal(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	n.servePeerAddress(t, podServer)
	testenv.NoError(t, n.node.Sysctl("net/ipv4/conf/all/route_localnet", "1"))
	if _, err := netnstest.Run(t, n.node, "add table ip t; add chain ip t c { type nat hook prerouting priority -100; }; "+
		"add rule ip t c tcp dport 9080 dnat to 127.0.0.1:30080; add rule ip t c udp dport 9053 dnat to 127.0.0.1:30053; add rule ip t c tcp dport 9099 dnat to 127.0.0.1:30099",
		netnstest.NFT(t), "-f", "-"); err != nil {
		t.Fatal(err)
	}
	n.listenOnNode(t, v1.ProtocolTCP, "127.0.0.1:30099")
	apply(t, n.start(t, userspace.Options{Capture: userspace.Loopback}), proxy.NewSnapshot(loopbackNode("127.0.0.0/8"),
		nodePortOf("web", v1.ProtocolTCP, "0.0.0.0:30080", podServer), nodePortOf("dns", v1.ProtocolUDP, "0.0.0.0:30053", podServer)))
	n.onNode().wantAnswer(t, "127.0.0.1:30080")
	if c, err := n.client.Dial(t.Context(), "tcp", "10.244.1.1:9099"); err != nil {
		t.Fatalf("another program at a loopback address: got error %v, want a connection", err)
	} else {
		_ = c.Close()
	}
	if server, _, _, err := n.askFor(t, "10.244.1.1:9080", 2*time.Second); err == nil {
		t.Errorf("node port at a loopback address, from another machine: got an answer of %s, want none", server)
	}
	c, err := n.client.Dial(t.Context(), "udp", "10.244.1.1:9053")
	testenv.NoError(t, err)
	defer c.Close() //nolint:errcheck // the test is over
	_, _ = c.Write([]byte("?"))
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	if got, err := c.Read(make([]byte, 100)); err == nil {
		t.Errorf("datagram from another machine: got an answer of %d bytes, want none", got)
	}
}

// A port that another program has is an error of that service port alone, also if the same Apply
// changes others; once it is free, the node port answers.
func TestLoopbackPortInUse(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	local := n.onNode()
	for _, at := range []string{"127.0.0.1:30080", "0.0.0.0:30080"} {
		taken := n.listenOnNode(t, v1.ProtocolTCP, at)
		b := n.start(t, userspace.Options{Capture: userspace.Loopback})
		node := loopbackNode("127.0.0.0/8", "127.0.0.7/32")
		before := proxy.NewSnapshot(node, nodePortOf("b", v1.ProtocolTCP, "0.0.0.0:30082", podServer))
		apply(t, b, before)
		web := nodePortOf("web", v1.ProtocolTCP, "0.0.0.0:30080", podServer)
		next := proxy.NewSnapshot(node, nodePortOf("a", v1.ProtocolTCP, "0.0.0.0:30081", podServer),
			nodePortOf("b", v1.ProtocolTCP, "0.0.0.0:30083", podServer), web)
		err := b.Apply(t.Context(), before, next)
		failed, _ := errors.AsType[proxy.PortErrors](err)
		if failed[web.Name] == nil || len(failed) != 1 || !strings.Contains(err.Error(), "127.0.0.1:30080/TCP") || !strings.Contains(err.Error(), "another program of the node listens there") {
			t.Fatalf("%s is taken: got error %v, want one of %v alone", at, err, web.Name)
		}
		held := before.Achieved(next, err)
		for _, to := range []string{"127.0.0.1:30081", "127.0.0.7:30083"} {
			local.wantAnswer(t, to)
		}
		for _, to := range []string{"127.0.0.1:30082", "127.0.0.7:30082"} {
			local.wantRefused(t, to)
		}
		testenv.NoError(t, taken.Close())
		if err := b.Apply(t.Context(), held, next); err != nil {
			t.Fatalf("once it is free: got error %v, want none", err)
		}
		local.wantAnswer(t, "127.0.0.1:30080")
		testenv.NoError(t, b.Close())
		local.wantRefused(t, "127.0.0.1:30080")
	}
}

// A node port that moves to another Service, changes its protocol or its number answers as its Service
// says, and connections of the former Service go on.
func TestLoopbackMoves(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	const other = podAddr + ":8081"
	n.serve(t, other)
	n.servePeerAddress(t, podServer)
	local, node := n.onNode(), loopbackNode("127.0.0.0/8")
	b := n.start(t, userspace.Options{Capture: userspace.Loopback})
	var held proxy.Snapshot
	next := func(ports ...*proxy.ServicePort) {
		t.Helper()
		s := proxy.NewSnapshot(node, ports...)
		testenv.NoError(t, b.Apply(t.Context(), held, s))
		held = s
	}
	next(nodePortOf("a", v1.ProtocolTCP, "0.0.0.0:30080", podServer))
	_, open := local.wantAnswer(t, "127.0.0.1:30080")
	next(nodePortOf("b", v1.ProtocolTCP, "0.0.0.0:30080", other), nodePortOf("a", v1.ProtocolTCP, "0.0.0.0:30081", podServer))
	if server, _, _, err := local.ask(t, "127.0.0.1:30080"); err != nil || server != other {
		t.Errorf("a node port of another Service: got %q and error %v, want %s", server, err, other)
	}
	local.wantAnswer(t, "127.0.0.1:30081")
	if got := b.Operations(); got != 2 {
		t.Errorf("operations: got %d, want 2, as the listener of a node port that moves stays", got)
	}
	if _, err := open.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(open, make([]byte, 1)); err != nil {
		t.Errorf("an open connection: got error %v, want an echo", err)
	}
	next(nodePortOf("b", v1.ProtocolTCP, "0.0.0.0:30080"), nodePortOf("a", v1.ProtocolUDP, "0.0.0.0:30081", podServer))
	local.wantRefused(t, "127.0.0.1:30080")
	local.wantRefused(t, "127.0.0.1:30081")
	if got := local.peerSeen(t, "127.0.0.1:30081"); !strings.Contains(got, "10.244.2.1") {
		t.Errorf("datagrams to a node port that was one of TCP: got %q, want an answer", got)
	}
}

// Close and Drain end a backend for loopback addresses as others.
func TestLoopbackDrains(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	local := n.onNode()
	b := n.start(t, userspace.Options{Capture: userspace.Loopback})
	s := proxy.NewSnapshot(loopbackNode("127.0.0.1/32"), nodePortOf("a", v1.ProtocolTCP, "0.0.0.0:30080", podServer))
	apply(t, b, s)
	_, open := local.wantAnswer(t, "127.0.0.1:30080")
	drained := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() { drained <- b.Drain(ctx) }()
	eventually(t, "no new connections", func() bool {
		_, _, c, err := local.ask(t, "127.0.0.1:30080")
		if c != nil {
			_ = c.Close()
		}
		return err != nil
	})
	again := n.start(t, userspace.Options{Capture: userspace.Loopback})
	apply(t, again, s)
	local.wantAnswer(t, "127.0.0.1:30080")
	testenv.NoError(t, open.Close())
	if err := <-drained; err != nil {
		t.Errorf("Drain: got error %v, want none", err)
	}
}

// Processes of the node share their loopback addresses, so none of these is the address of one client:
// connections and sessions have the whole limit, of which one service port leaves a quarter to others.
func TestLoopbackLimits(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	n.servePeerAddress(t, podServer)
	local := n.onNode()
	b := n.start(t, userspace.Options{Capture: userspace.Loopback, Connections: 16, Sessions: 16})
	apply(t, b, proxy.NewSnapshot(loopbackNode("127.0.0.1/32"),
		nodePortOf("a", v1.ProtocolTCP, "0.0.0.0:30080", podServer), nodePortOf("b", v1.ProtocolTCP, "0.0.0.0:30081", podServer),
		nodePortOf("c", v1.ProtocolUDP, "0.0.0.0:30080", podServer), nodePortOf("d", v1.ProtocolUDP, "0.0.0.0:30081", podServer)))
	for range 12 {
		local.wantAnswer(t, "127.0.0.1:30080")
		local.peerSeen(t, "127.0.0.1:30080")
	}
	for range 4 {
		local.wantAnswer(t, "127.0.0.1:30081")
		local.peerSeen(t, "127.0.0.1:30081")
	}
	if s := b.Stats(); s.Connections != 16 || s.Sessions != 16 || s.Crowded != 0 {
		t.Errorf("got %d connections, %d sessions and %d crowded, want 16, 16 and 0", s.Connections, s.Sessions, s.Crowded)
	}
}
