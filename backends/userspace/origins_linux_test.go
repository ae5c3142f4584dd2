package userspace_test

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// insideOnly makes the frontends of a snapshot drop clients from outside.
func insideOnly(s proxy.Snapshot) proxy.Snapshot {
	return snapshots.EachWith(s, snapshots.Routes(proxy.TrafficRoute{Action: proxy.Forward}, proxy.TrafficRoute{Action: proxy.Drop}))
}

// Packets from any address of the node count as the node's, also from addresses that the Node
// object does not list; packets of a client do not.
func TestNodeIsRecognized(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.serve(t, podServer)
		apply(t, n.start(t, userspace.Options{Capture: c}), insideOnly(snapshot(one)))
		own := network{client: n.node, node: n.node, pod: n.pod}
		for _, from := range []string{"10.244.1.1", "10.244.2.1"} {
			got, err := own.greetingFrom(t, netip.AddrPortFrom(netip.MustParseAddr(from), 0), one)
			if err != nil || !strings.HasPrefix(got, podServer+" ") {
				t.Errorf("from %s: got %q and error %v, want an answer of %s", from, got, err, podServer)
			}
		}
		if server, _, _, err := n.askFor(t, one, 900*time.Millisecond); err == nil {
			t.Errorf("the client: got an answer of %s, want none", server)
		}
	})
}

// The same for IPv6, where a client's address may differ in the last bits only from the node's
// address that it connects to.
func TestNodeIsRecognizedInIPv6(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.addIPv6(t)
		const server, port = "[fd00:2::10]:8080", ":30100"
		n.serve(t, server)
		s := withEndpoint(snapshot("[::]"+port), server)
		node := proxy.Node{Name: "node", Addresses: snapshots.Addrs("fd00:1::1")}
		node.NodePorts.All = true
		apply(t, n.start(t, userspace.Options{Capture: c}), withNode(insideOnly(s), &node))
		own := network{client: n.node, node: n.node, pod: n.pod}
		for _, at := range []string{"fd00:1::1", "fd00:2::1"} {
			to := net.JoinHostPort(at, port[1:])
			if got, _, _, err := own.ask(t, to); err != nil || got != server {
				t.Errorf("the node at %s: got %q and error %v, want an answer of %s", to, got, err, server)
			}
		}
		if got, _, _, err := n.askFor(t, "[fd00:1::1]"+port, 900*time.Millisecond); err == nil {
			t.Errorf("the client: got an answer of %s, want none", got)
		}
	})
}

// Other ports of a ClusterIP are refused; those of other addresses pass to their host.
func TestOtherPortsOfServices(t *testing.T) {
	t.Parallel()
	for _, c := range []userspace.Capture{userspace.TPROXY, userspace.Redirect} {
		for _, kind := range []proxy.FrontendKind{proxy.ClusterIP, proxy.ExternalIP} {
			t.Run(c.String()+"/"+kind.String(), func(t *testing.T) {
				t.Parallel()
				n := newNetwork(t)
				const other = "10.96.0.1:22"
				n.serve(t, podServer)
				n.serve(t, other)
				apply(t, n.start(t, userspace.Options{Capture: c}), ofKind(snapshot(one), kind))
				n.wantAnswer(t, one)
				server, _, _, err := n.ask(t, other)
				if kind == proxy.ClusterIP && !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("another port: got %q and error %v, want %v", server, err, syscall.ECONNREFUSED)
				}
				if kind != proxy.ClusterIP && (err != nil || server != other) {
					t.Errorf("another port: got %q and error %v, want %s", server, err, other)
				}
			})
		}
	}
}
