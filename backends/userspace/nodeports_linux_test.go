package userspace_test

import (
	"io"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// listenOnNode has a program of the node listen.
func (n network) listenOnNode(t *testing.T, protocol v1.Protocol, at string) io.Closer {
	t.Helper()
	var socket io.Closer
	var err error
	if protocol == v1.ProtocolUDP {
		socket, err = n.node.ListenPacket(t.Context(), "udp4", at)
	} else {
		socket, err = n.node.Listen(t.Context(), "tcp4", at)
	}
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = socket.Close() }) // unless it is closed
	return socket
}

// A node port at which another program listens is named, and its service port is served at all other
// frontends. When the program ends, the node port is served, too.
func TestNodePortInUse(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	const taken = "10.244.1.1:30080"
	testenv.NoError(t, n.node.AddAddress("clients", netip.MustParsePrefix("203.0.113.1/32")))
	for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
		socket := n.listenOnNode(t, protocol, taken)
		b := n.startOnAddresses(t, "lo")
		hasDrifted := func() (drifted bool) {
			testenv.NoError(t, b.NS.Do(func() error { drifted = b.Drifted(t.Context()); return nil }))
			return drifted
		}
		node := &proxy.Node{Name: "node", Addresses: snapshots.Addrs("10.244.1.1", "203.0.113.1")}
		node.NodePorts.All = true
		p := portAt("web", protocol, at(proxy.ClusterIP, one), podServer)
		other := at(proxy.NodePort, "0.0.0.0:30080")
		other.FromInside, other.FromOutside = p.Frontends[0].FromInside, p.Frontends[0].FromOutside
		p.Frontends = append(p.Frontends, other)
		s := proxy.NewSnapshot(node, p)
		testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, s))
		if protocol == v1.ProtocolTCP {
			n.wantAnswer(t, one)
			n.wantAnswer(t, "203.0.113.1:30080")
		}
		if got := b.CheckNode(s); len(got) != 1 || !strings.Contains(got[0].Error(), taken) {
			t.Errorf("%s: got problems %v, want one with %s", protocol, got, taken)
		}
		if hasDrifted() {
			t.Errorf("%s: Drifted while it is in use: got true, want false", protocol)
		}
		testenv.NoError(t, socket.Close())
		if !hasDrifted() {
			t.Errorf("%s: Drifted when it is free: got false, want true", protocol)
		}
		testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, s))
		if protocol == v1.ProtocolTCP {
			n.wantAnswer(t, taken)
		}
		if got := b.CheckNode(s); len(got) != 0 {
			t.Errorf("%s: when it is free: got problems %v, want none", protocol, got)
		}
		testenv.NoError(t, b.Cleanup(t.Context()))
	}
}
