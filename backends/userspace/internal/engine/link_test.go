package engine

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// An endpoint on the client's own link sees the node, since its answers to the client would
// bypass the node; all other endpoints see the client. Failures are recorded by link.
func TestEndpointsOnTheClientsLink(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr
	links := map[netip.Addr]int{addr("10.1.0.1"): 7, addr("10.1.0.2"): 7, addr("10.2.0.1"): 8, addr("192.0.2.1"): 1}
	asked := 0
	w := newFixture(t, Config{Link: func(a netip.Addr) int {
		asked++
		return links[a]
	}}, v1.ProtocolTCP)
	route := proxy.TrafficRoute{Action: proxy.Forward}
	p := *w.port
	p.Cluster = snapshots.At(netip.MustParseAddrPort("10.1.0.1:80"), netip.MustParseAddrPort("10.2.0.1:80"), netip.MustParseAddrPort("10.3.0.1:80"))
	p.Frontends = []proxy.Frontend{{Addr: memoryFrontend, FromInside: route, FromOutside: route}}
	w.Apply(proxy.NewSnapshot(&proxy.Node{Addresses: []netip.Addr{addr("192.0.2.1")}}, &p))
	node := netip.Addr{}
	for name, c := range map[string]struct {
		client string
		origin Origin
		sees   [3]netip.Addr // by the endpoints in turn
		link   [3]int
	}{
		"on the link of the first":  {"10.1.0.2", Pod, [3]netip.Addr{node, addr("10.1.0.2"), addr("10.1.0.2")}, [3]int{0, 7, 7}},
		"the first itself":          {"10.1.0.1", Pod, [3]netip.Addr{node, addr("10.1.0.1"), addr("10.1.0.1")}, [3]int{0, 7, 7}},
		"on the link of the second": {"10.2.0.1", Pod, [3]netip.Addr{addr("10.2.0.1"), node, addr("10.2.0.1")}, [3]int{8, 0, 8}},
		"on no known link":          {"10.9.0.1", Pod, [3]netip.Addr{addr("10.9.0.1"), addr("10.9.0.1"), addr("10.9.0.1")}, [3]int{-1, -1, -1}},
		"the node":                  {"192.0.2.1", Node, [3]netip.Addr{addr("192.0.2.1"), addr("192.0.2.1"), addr("192.0.2.1")}, [3]int{}},
	} {
		d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: netip.AddrPortFrom(addr(c.client), 1), Frontend: memoryFrontend, Origin: c.origin})
		for i, e := range p.Cluster {
			asked = 0
			for range 2 {
				sees := *d.view(e)
				if sees.from != c.sees[i] || sees.source != c.sees[i] || sees.link != c.link[i] {
					t.Errorf("%s: endpoint %v: got address %v, source %v, link %d, want %v, the same, and %d", name, e.Addr, sees.from, sees.source, sees.link, c.sees[i], c.link[i])
				}
			}
			if asked > 2 {
				t.Errorf("%s: calls of Config.Link: got %d, want 2 at most", name, asked)
			}
		}
	}
}

// After failures of two sources, all sources on their link avoid the endpoint, and no others.
func TestFailuresOfOneLink(t *testing.T) {
	t.Parallel()
	broken := map[netip.Addr]bool{alice: true, bob: true}
	links := map[netip.Addr]int{alice: 1, bob: 1, carol: 1, memoryClient.Addr(): 2}
	const protocol = v1.ProtocolTCP
	w := newFixture(t, Config{
		Link: func(a netip.Addr) int { return links[a] },
		Hooks: Hooks{Dial: func(_ context.Context, d Dial) (net.Conn, error) {
			if broken[d.From] {
				return nil, errors.New("broken")
			}
			c, _ := net.Pipe()
			return c, nil
		}},
	}, protocol)
	w.serveAt(memoryFrontend, memoryEndpoint)
	avoids := func(client netip.Addr) bool {
		d := w.decide(Flow{Protocol: protocol, Client: netip.AddrPortFrom(client, 1), Frontend: memoryFrontend, Origin: Pod})
		return w.failures.has(d.failureKey(&endpoints.Endpoint{Addr: memoryEndpoint}))
	}
	for client := range broken {
		d := w.decide(Flow{Protocol: protocol, Client: netip.AddrPortFrom(client, 1), Frontend: memoryFrontend, Origin: Pod})
		if _, _, err := w.connect(t.Context(), &d); err == nil {
			t.Fatal("got a connection, want the dialer to fail")
		}
	}
	for client, want := range map[netip.Addr]bool{alice: true, bob: true, carol: true, memoryClient.Addr(): false} {
		if got := avoids(client); got != want {
			t.Errorf("%v avoids the endpoint: got %v, want %v", client, got, want)
		}
	}
	d := w.decide(Flow{Protocol: protocol, Client: memoryClient, Frontend: memoryFrontend, Origin: Pod})
	c, _, err := w.connect(t.Context(), &d)
	testenv.NoError(t, err)
	shut(c)
	if !avoids(carol) {
		t.Error("a success behind another link has removed the failure of this link")
	}
}
