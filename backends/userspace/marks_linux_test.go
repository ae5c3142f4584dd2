package userspace_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// at returns the network with another namespace for the servers.
func (n network) at(servers *netns.NS) network {
	return network{client: n.client, node: n.node, pod: servers}
}

// Foreign bits of marks lead no packets to the backend, and the backend keeps them. Its own bit is
// only on packets that it captures, or that belong to connections that it makes.
func TestForeignMarksAreLeftAlone(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	const onNode, plain = "10.244.2.1:8081", "10.244.1.1:9999"
	for at, where := range map[string]*netns.NS{podServer: n.pod, onNode: n.node, plain: n.node} {
		n.at(where).serve(t, at)
	}
	n.nft(t, `table ip foreign {
		chain coming { type filter hook prerouting priority -150; meta mark set meta mark | 0x1; }
		chain own { type filter hook output priority -150; meta mark set meta mark | 0x1; ct state new ct mark set ct mark | 0x2; }
		chain wire { type filter hook prerouting priority -130; tcp dport 9999 meta mark & 0x40 != 0 drop; }
	}`)
	apply(t, n.start(t, userspace.Options{}), both(snapshot(one), withEndpoint(snapshot(two), onNode)))
	for to, want := range map[string]string{one: podServer, two: onNode, podServer: podServer, plain: plain} {
		for name, from := range map[string]*netns.NS{"client": n.client, "node": n.node} {
			got, err := network{client: from}.greeting(t, to, 0)
			if err != nil || !strings.HasPrefix(got, want+" ") {
				t.Errorf("%s to %s: got %q and error %v, want an answer of %s", name, to, got, err, want)
			}
		}
	}
	flows, err := n.node.Netlink().ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	testenv.NoError(t, err)
	seen := 0
	for _, f := range flows {
		if f.Forward.DstPort == 8081 {
			seen++
		}
		isOwn := f.Forward.SrcPort >= 10_240 && f.Forward.SrcPort < 30_240 // the kernel gives clients later ones
		if isOwn != (f.Mark&0x40 != 0) {
			t.Errorf("mark of the flow from port %d to %v:%d: got %#x, want 0x40 in it: %t", f.Forward.SrcPort, f.Forward.DstIP, f.Forward.DstPort, f.Mark, isOwn)
		}
	}
	if seen != 2 {
		t.Errorf("connections to the endpoint on the node: got %d, want 2", seen)
	}
}

// A transparent socket of another program that listens at every address gets no packets that the
// node forwards.
func TestForeignTransparentListeners(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	apply(t, n.start(t, userspace.Options{}), snapshot(one))
	if err := n.node.Do(func() error {
		c := net.ListenConfig{Control: transparent}
		l, err := c.Listen(t.Context(), "tcp4", "0.0.0.0:8080")
		if err == nil {
			t.Cleanup(func() { _ = l.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	n.wantAnswer(t, podServer)
	n.wantAnswer(t, one)
}

// transparent allows a socket to use addresses that the host does not have.
func transparent(_, _ string, c syscall.RawConn) (err error) {
	return errors.Join(c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1)
	}), err)
}

// No loopback address serves node ports; other addresses do.
func TestLoopbackServesNoNodePorts(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.serve(t, podServer)
		const port = ":30100" // in the range of the backend's source ports
		loopback := []string{"127.0.0.1" + port, "127.0.0.2" + port}
		for _, at := range loopback {
			n.at(n.node).serve(t, at)
		}
		s := snapshot("0.0.0.0" + port)
		node := *s.Node()
		node.NodePorts.All = true
		apply(t, n.start(t, userspace.Options{Capture: c}), withNode(s, &node))
		own := network{client: n.node, node: n.node, pod: n.pod}
		for _, at := range loopback {
			if server, _, _, err := own.ask(t, at); err != nil || server != at {
				t.Errorf("at %s: got %q and error %v, want an answer of the program", at, server, err)
			}
		}
		n.wantAnswer(t, "10.244.1.1"+port)
		own.wantAnswer(t, "10.244.1.1"+port)
	})
}

// withNode returns a snapshot with the same service ports and another node.
func withNode(s proxy.Snapshot, node *proxy.Node) proxy.Snapshot {
	return proxy.NewSnapshot(node, slices.Collect(s.All())...)
}

// Ports of clients and frontends may be in the range of the backend's source ports.
func TestClientsMayUseAnyPort(t *testing.T) {
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		// The kernel gives no listener or connection of the backend a port of the clients.
		testenv.NoError(t, n.node.Sysctl("net/ipv4/ip_local_reserved_ports", "10240,20000,30239,40000"))
		const onNode = "10.244.2.1:8081"
		n.serve(t, podServer)
		n.at(n.node).serve(t, onNode)
		n.echo(t, podServer)
		var all proxy.Snapshot
		for i, port := range []int{80, 15_000} {
			tcp, udp := snapshot(fmt.Sprintf("10.96.0.1:%d", port)), names(fmt.Sprintf("10.96.0.1:%d", port))
			local := withEndpoint(snapshot(fmt.Sprintf("10.96.0.2:%d", port)), onNode)
			if next := both(both(tcp, local), udp); i == 0 {
				all = next
			} else {
				all = both(all, next)
			}
		}
		b := n.start(t, userspace.Options{Capture: c})
		b.ReachFrom(25_000) // so that the backend uses none of the clients' ports
		apply(t, b, all)
		for name, from := range map[string]*netns.NS{"client": n.client, "node": n.node} {
			for _, own := range []int{10_240, 20_000, 30_239, 40_000} {
				for _, port := range []int{80, 15_000} {
					for addr, server := range map[string]string{"10.96.0.1": podServer, "10.96.0.2": onNode} {
						got, err := network{client: from}.greeting(t, fmt.Sprintf("%s:%d", addr, port), own)
						if err != nil || !strings.HasPrefix(got, server+" ") {
							t.Errorf("%s, from port %d to %s:%d: got %q and error %v, want an answer of %s", name, own, addr, port, got, err, server)
						}
					}
					wantEchoTwice(t, network{client: from}, fmt.Sprintf("0.0.0.0:%d", own), fmt.Sprintf("10.96.0.1:%d", port))
				}
			}
		}
	})
}

// wantEchoTwice sends two datagrams: the flow of the second one has an answer.
func wantEchoTwice(t *testing.T, n network, from, to string) {
	t.Helper()
	for range 2 {
		n.wantEcho(t, from, to)
	}
}

// The backend can use the first and the last port of its range.
func TestFirstAndLastSourcePort(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	const onNode = "10.244.2.1:8081"
	n.serve(t, podServer)
	n.at(n.node).serve(t, onNode)
	b := n.start(t, userspace.Options{})
	apply(t, b, both(snapshot(one), withEndpoint(snapshot(two), onNode)))
	for _, port := range []uint16{10_240, 30_239} {
		for to, want := range map[string]string{one: podServer, two: onNode} {
			b.ReachFrom(port)
			server, peer, _, err := n.ask(t, to)
			if err != nil || server != want || peer != netip.MustParseAddrPort(fmt.Sprintf("%s:%d", clientAddr, port)) {
				t.Errorf("%s from port %d: got server %q, peer %v and error %v, want the client and that port", want, port, server, peer, err)
			}
		}
	}
}

// Connections that wait for their first endpoint are captured, and dropped ones are not.
func TestFirstConnections(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.serve(t, podServer)
		asked := make(chan userspace.Flow, 10)
		b := n.start(t, userspace.Options{Capture: c, Hooks: userspace.Hooks{
			FirstConnection: func(f userspace.Flow, _ proxy.ServicePortName) { asked <- f },
		}})
		apply(t, b, both(withAction(snapshot(one), proxy.Reject), withAction(snapshot(two), proxy.Drop)))
		n.wantSilence(t, two)
		n.ownSilence(t, two)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		client, err := n.client.Dial(ctx, "tcp", one)
		testenv.NoError(t, err)
		defer client.Close() //nolint:errcheck // the test is over
		if f := <-asked; f.Frontend.String() != one || f.Client.String() != client.LocalAddr().String() {
			t.Errorf("FirstConnection: got a flow from %v to %v, want %v to %s", f.Client, f.Frontend, client.LocalAddr(), one)
		}
		if len(asked) != 0 {
			t.Errorf("FirstConnection: got %v, too, want no flow to the frontend that drops", <-asked)
		}
		apply(t, b, snapshot(one))
		_ = client.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := client.Read(make([]byte, 1)); err != nil {
			t.Errorf("with an endpoint: got error %v, want an answer", err)
		}
	})
}

// ownSilence checks that the node itself gets no answer.
func (n network) ownSilence(t *testing.T, to string) {
	t.Helper()
	network{client: n.node, node: n.node, pod: n.pod}.wantSilence(t, to)
}

// withAction sets the action of all frontends.
func withAction(s proxy.Snapshot, a proxy.Action) proxy.Snapshot {
	return snapshots.EachWith(s, snapshots.Routes(proxy.TrafficRoute{Action: a}, proxy.TrafficRoute{Action: a}))
}
