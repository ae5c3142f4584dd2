package backendtest

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/proxy"
)

// Unservable is a kind of service port that no dataplane can serve. A backend leaves out such a
// port, names it in [proxy.PortErrors] and serves all others.
type Unservable struct {
	// Why is a sentence that says why no dataplane can serve the port.
	Why string
	// Port is a service port of this kind.
	Port *proxy.ServicePort
}

// Unservables returns what no dataplane can serve. Trackers make no such service ports, but
// programs may make their own, and a tracker may have a bug. Poison/Objects of [Run] applies
// all of them beside Services that work.
func Unservables() []Unservable {
	good := netip.MustParseAddrPort("10.0.0.5:8080")
	frontend := func(addr string) func(*proxy.ServicePort) {
		return func(p *proxy.ServicePort) { p.Frontends[0].Addr = netip.MustParseAddrPort(addr) }
	}
	pool := func(addrs ...netip.AddrPort) func(*proxy.ServicePort) {
		return func(p *proxy.ServicePort) { p.Cluster = poolAt(addrs...) }
	}
	var all []Unservable
	for _, u := range []struct {
		name, why string
		edit      func(*proxy.ServicePort)
	}{
		{
			"endpoint-of-the-other-family", "A packet of one family cannot be forwarded to an endpoint of the other.",
			pool(good, netip.MustParseAddrPort("[fd00:10::5]:8080")),
		},
		{"endpoint-without-address", "An endpoint without an address cannot be reached.", pool(good, netip.AddrPort{})},
		{
			"frontend-of-the-other-family", "A service port of one family gets no packets to addresses of the other family.",
			frontend("[fd00:96::5:1]:80"),
		},
		{
			"frontend-without-address", "No packet goes to a frontend without an address.",
			func(p *proxy.ServicePort) { p.Frontends[0].Addr = netip.AddrPort{} },
		},
		{"frontend-at-unspecified-address", "Only a node port stands for all addresses of the node.", frontend("0.0.0.0:80")},
		{"forward-without-endpoints", "A route that forwards needs an endpoint; without one, a tracker makes it reject or drop.", pool()},
		{
			"protocol-without-ports", "Only TCP, UDP and SCTP have the ports that a frontend names.",
			func(p *proxy.ServicePort) { p.Name.Protocol = "ICMP" },
		},
		{
			"no-protocol", "No packet is without a protocol.",
			func(p *proxy.ServicePort) { p.Name.Protocol = "" },
		},
	} {
		port := handMade(u.name, len(all), good)
		u.edit(port)
		all = append(all, Unservable{Why: u.why, Port: port})
	}
	return all
}

// handMade makes a service port with a ClusterIP of its own.
func handMade(name string, number int, pool ...netip.AddrPort) *proxy.ServicePort {
	route := proxy.TrafficRoute{Action: proxy.Forward, Masquerade: proxy.MasqueradeNonPods}
	return &proxy.ServicePort{
		Name: proxy.ServicePortName{
			NamespacedName: types.NamespacedName{Namespace: "poison", Name: name}, Protocol: v1.ProtocolTCP, Family: v1.IPv4Protocol,
		},
		Frontends: []proxy.Frontend{{
			Kind: proxy.ClusterIP, Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 200, byte(number)}), cluster.ServicePort),
			FromInside: route, FromOutside: route,
		}},
		Cluster: poolAt(pool...), HasEndpoints: true,
	}
}

func poolAt(addrs ...netip.AddrPort) []*endpoints.Endpoint {
	var out []*endpoints.Endpoint
	for _, a := range addrs {
		out = append(out, &endpoints.Endpoint{Addr: a, Ready: true, Serving: true})
	}
	return out
}
