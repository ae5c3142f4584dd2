package backendtest

import (
	"fmt"
	"net/netip"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// unservables returns service ports that no dataplane can serve; each name says why. A backend leaves out such a
// port, names it in [proxy.PortErrors] and serves all others. Trackers make no such service ports, but
// programs may make their own, and a tracker may have a bug.
func unservables() (all []*proxy.ServicePort) {
	const good = "10.0.0.5"
	frontend := func(addr netip.AddrPort) snapshots.Edit {
		return func(p *proxy.ServicePort) { p.Frontends[0].Addr = addr }
	}
	for _, u := range []struct {
		name string
		edit snapshots.Edit
	}{
		{"endpoint-of-the-other-family", snapshots.Pool(good, "fd00:10::5")},
		{"endpoint-without-address", func(p *proxy.ServicePort) {
			p.Cluster = append(p.Cluster, &endpoints.Endpoint{Ready: true, Serving: true})
		}},
		{"frontend-of-the-other-family", frontend(netip.MustParseAddrPort("[fd00:96::5:1]:80"))},
		{"frontend-without-address", frontend(netip.AddrPort{})},
		// Only a node port stands for all addresses of the node.
		{"frontend-at-unspecified-address", frontend(netip.MustParseAddrPort("0.0.0.0:80"))},
		// Without endpoints, a tracker makes the route reject or drop.
		{"forward-without-endpoints", snapshots.Pool()},
		{"protocol-without-ports", func(p *proxy.ServicePort) { p.Name.Protocol = "ICMP" }},
		{"no-protocol", func(p *proxy.ServicePort) { p.Name.Protocol = "" }},
	} {
		all = append(all, snapshots.With(handMade(u.name, len(all), good), u.edit))
	}
	return all
}

// handMade makes a service port with a ClusterIP of its own.
func handMade(name string, number int, pool ...string) *proxy.ServicePort {
	p := snapshots.Port("poison/"+name, fmt.Sprintf("10.96.200.%d:80", number), pool...)
	p.HasEndpoints = true
	route := proxy.TrafficRoute{Action: proxy.Forward, Masquerade: proxy.MasqueradeNonPods}
	return snapshots.With(p, snapshots.Routes(route, route))
}
