package userspace_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// A process with another capture replaces the objects of the one before, and its Cleanup
// removes those of both.
func TestCaptureChanges(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	var last *userspace.Backend
	for _, capture := range []userspace.Capture{userspace.TPROXY, userspace.Redirect, userspace.TPROXY, userspace.Redirect} {
		if last != nil {
			testenv.NoError(t, last.Close())
		}
		last = n.start(t, userspace.Options{Capture: capture})
		apply(t, last, snapshot(one))
		n.wantAnswer(t, one)
		want := map[userspace.Capture][3]int{userspace.TPROXY: {1, 1, 2}, userspace.Redirect: {0, 0, 3}}[capture]
		n.wantRouting(t, want)
		if last.Abilities().Drifted(t.Context()) {
			t.Errorf("%v: Drifted: got true, want false", capture)
		}
	}
	testenv.NoError(t, last.Cleanup(t.Context()))
	n.wantRouting(t, [3]int{})
}

// Clients cannot connect to the addresses of listeners, not even at a node port, although every
// other address of the node serves it.
func TestListenersAreNotReachableDirectly(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		t.Parallel()
		n := newNetwork(t)
		apply(t, n.start(t, userspace.Options{Capture: c}), snapshot("0.0.0.0:30100"))
		n.wantAnswer(t, "10.244.1.1:30100")
		var wg sync.WaitGroup
		for _, r := range n.routing(t).listeners {
			for _, port := range []uint16{userspace.DefaultPort, 30_100} {
				wg.Go(func() { n.wantSilence(t, fmt.Sprintf("%v:%d", r.Dst.IP, port)) })
			}
		}
		wg.Wait()
	})
}

// Connections and datagrams to an endpoint that is the Service's own address would loop; they end at once.
func TestLoopEnds(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	const at = "10.96.0.1:53"
	b := n.start(t, userspace.Options{Capture: userspace.Redirect})
	apply(t, b, services(web(at, at), dns(at, at)))
	if a, _, err := n.ask(t, at); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got server %v and error %v, want the connection to end", a.Own, err)
	}
	if _, err := n.flow(t, at).Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the datagram has failed", func() bool { return b.Abilities().CountConnections().Failed == 2 })
	if got, want := b.Abilities().CountConnections(), (proxy.ConnectionCounts{Accepted: 1, Failed: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Connections to an endpoint that is the node port itself, at any address of the node, would
// loop; they end at once.
func TestLoopOfNodePorts(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		b := n.start(t, userspace.Options{Capture: c})
		apply(t, b, services(web("0.0.0.0:30100", "10.244.2.1:30100")))
		if a, _, err := n.ask(t, "10.244.1.1:30100"); err == nil {
			t.Errorf("got server %v, want the connection to end", a.Own)
		}
		if s := b.Abilities().CountConnections(); s.Accepted > 2 {
			t.Errorf("accepted connections: got %d, want 2 at most", s.Accepted)
		}
	})
}

// A client may connect to two Services from one port at a time.
func TestOneClientPortForTwoServices(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	const service62, other6 = "[fd00:96::2]:80", "[fd00:2::10]:8081"
	apply(t, n.start(t, userspace.Options{Capture: userspace.Redirect}), services(web(one), web(two, otherPod), web(service6), web(service62, other6)))
	for to, server := range map[string]string{one: podServer, two: otherPod} {
		n.bound("0.0.0.0:40000").wantFlow(t, "tcp", to, server)
	}
	for to, server := range map[string]string{service6: podServer6, service62: other6} {
		n.bound("[::]:40000").wantFlow(t, "tcp", to, server)
	}
}

// Packets of a program of the node are captured, even if they have one property of the
// backend's own packets: the source port, or a transparent socket.
func TestProgramsOfTheNodeAreCaptured(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	apply(t, n.start(t, userspace.Options{}), snapshot(one))
	n.from("node").bound("0.0.0.0:20000").wantFlow(t, "tcp", one, podServer)
	for _, port := range []int{40_000, 10_239, 30_240} { // the last ones are next to the backend's range
		n.from("node").bound(fmt.Sprint("0.0.0.0:", port), transparent).wantFlow(t, "tcp", one, podServer)
	}
}

// The backend's own packets are not captured, even if the endpoint is a frontend, in a pod or
// on the node.
func TestEndpointsMayBeFrontends(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.Serve("node", "node", 8081)
	for _, at := range []string{two, nodeServer} {
		b := n.start(t, userspace.Options{})
		apply(t, b, services(web(one, at), web(at)))
		n.wantServer(t, one, at)
		testenv.NoError(t, b.Close())
	}
}

// Packets from any address of the node count as the node's, also from addresses that the Node
// object does not list; packets of a client do not, although in IPv6 its address may differ from the node's in the
// last bits only.
func TestNodeIsRecognized(t *testing.T) {
	t.Parallel()
	insideOnly := snapshots.Routes(proxy.TrafficRoute{Action: proxy.Forward}, proxy.TrafficRoute{Action: proxy.Drop})
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		node := snapshots.Node("10.244.1.1", "fd00:1::1")
		apply(t, n.start(t, userspace.Options{Capture: c}), proxy.NewSnapshot(node,
			snapshots.With(web(one), insideOnly), snapshots.With(web("[::]:30100"), insideOnly)))
		own := n.from("node")
		for _, from := range []string{"10.244.1.1:0", "10.244.2.1:0"} {
			own.bound(from).wantFlow(t, "tcp", one, podServer)
		}
		for _, at := range []string{"[fd00:1::1]:30100", "[fd00:2::1]:30100"} {
			own.wantAnswer(t, at)
		}
		for _, at := range []string{one, "[fd00:1::1]:30100"} {
			if a, _, err := n.askFor(t, at, 900*time.Millisecond); err == nil {
				t.Errorf("the client at %s: got an answer of %v, want none", at, a.Own)
			}
		}
	})
}

// A client whose own address is that of a Service is served like any other: answers to it are not
// captured, whether or not its port is the Service's.
func TestClientsMayHaveAddressesOfServices(t *testing.T) {
	t.Parallel()
	const addr, port, frontend = "10.96.0.3", "40000", "10.96.0.1:53"
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		for name, of := range map[string]string{"another port": addr + ":80", "the Service's port": addr + ":" + port} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				n := newNetwork(t)
				to := netip.MustParsePrefix(addr + "/32")
				testenv.NoError(t, n.NS("client").AddAddress("eth0", to))
				testenv.NoError(t, n.node().AddRoute(netns.Route{To: to, Link: "clients", Via: netip.MustParseAddr(clientAddr)}))
				apply(t, n.start(t, userspace.Options{Capture: c}), services(web(one), web(of), dns(frontend), dns(of)))
				n.bound(addr+":"+port).wantFlow(t, "tcp", one, podServer)
				n.bound(addr+":"+port).wantFlow(t, "udp", frontend, podServer)
			})
		}
	})
}

// No loopback address serves node ports; other addresses do.
func TestLoopbackServesNoNodePorts(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		const port = ":30100" // in the range of the backend's source ports
		n.Serve("node", "node", 30100)
		apply(t, n.start(t, userspace.Options{Capture: c}), snapshot("0.0.0.0"+port))
		own := n.from("node")
		for _, at := range []string{"127.0.0.1" + port, "127.0.0.2" + port} {
			own.wantServer(t, at, at)
		}
		n.wantAnswer(t, "10.244.1.1"+port)
		own.wantAnswer(t, "10.244.1.1"+port)
	})
}

// Connections that wait for their first endpoint are captured, and dropped ones are not.
func TestFirstConnections(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		asked := make(chan userspace.Flow, 10)
		b := n.start(t, userspace.Options{Capture: c, Hooks: userspace.Hooks{
			FirstConnection: func(f userspace.Flow, _ proxy.ServicePortName) { asked <- f },
		}})
		apply(t, b, services(none(one), snapshots.With(web(two), doing(proxy.Drop))))
		n.wantSilence(t, two)
		n.from("node").wantSilence(t, two)
		client, err := n.dial(t, "tcp", netip.AddrPort{}, one)
		testenv.NoError(t, err)
		if f := <-asked; f.Frontend.String() != one || f.Client.String() != client.LocalAddr().String() {
			t.Errorf("FirstConnection: got a flow from %v to %v, want %v to %s", f.Client, f.Frontend, client.LocalAddr(), one)
		}
		if len(asked) != 0 {
			t.Errorf("FirstConnection: got %v, too, want no flow to the frontend that drops", <-asked)
		}
		apply(t, b, snapshot(one))
		if _, err := client.Ask(t.Context()); err != nil {
			t.Errorf("with an endpoint: got error %v, want an answer", err)
		}
	})
}

// Packets that another program exempts from connection tracking pass, as those to a cache of DNS on
// the node at the address of the Service of DNS, from pods and from the node itself. So do
// packets to its other ports.
func TestUntrackedPacketsPass(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		t.Parallel()
		n := newNetwork(t)
		for _, at := range []string{"10.96.0.1/32", "fd00:96::1/128"} {
			testenv.NoError(t, n.node().AddAddress("clients", netip.MustParsePrefix(at)))
		}
		n.Serve("node", "cache", 80)
		n.Serve("node", "cache", 9253) // which no Service has
		apply(t, n.start(t, userspace.Options{Capture: c}), bothProtocols())
		for _, protocol := range []string{"tcp", "udp"} {
			n.bound("0.0.0.0:0").wantFlow(t, protocol, one, podServer)
			n.bound("[::]:0").wantFlow(t, protocol, service6, podServer6)
		}
		n.nft(t, `table inet exempt {
			set cached { type ipv4_addr; elements = { 10.96.0.1 } }
			set cached6 { type ipv6_addr; elements = { fd00:96::1 } }
			chain in { type filter hook prerouting priority -300; ip daddr @cached notrack; ip6 daddr @cached6 notrack; }
			chain out { type filter hook output priority -300
				ip daddr @cached notrack; ip6 daddr @cached6 notrack
				ip saddr @cached notrack; ip6 saddr @cached6 notrack
			}
		}`)
		for _, from := range []network{n, n.from("node")} {
			for _, to := range []string{one, service6, "10.96.0.1:9253", "[fd00:96::1]:9253"} {
				for _, protocol := range []string{"tcp", "udp"} {
					from.bound(map[bool]string{true: "[::]:0", false: "0.0.0.0:0"}[to[0] == '[']).wantFlow(t, protocol, to, to)
				}
			}
		}
	})
}

// A transparent socket of another program that listens at every address gets no packets that the
// node forwards.
func TestForeignTransparentListeners(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	apply(t, n.start(t, userspace.Options{}), snapshot(one))
	testenv.NoError(t, n.node().Do(func() error {
		c := net.ListenConfig{Control: control(transparent)}
		l, err := c.Listen(context.WithoutCancel(t.Context()), "tcp4", "0.0.0.0:8080")
		if err == nil {
			testenv.CloseAtEnd(t, l)
		}
		return err
	}))
	n.wantAnswer(t, podServer)
	n.wantAnswer(t, one)
}
