package nftables

import (
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// What no table can hold is refused before it is written as something else: the
// unspecified address, for one, is what tells node ports from other frontends.
func TestFaults(t *testing.T) {
	at := func(addr string) func(*proxy.ServicePort) {
		return func(p *proxy.ServicePort) { p.Frontends[0].Addr = netip.MustParseAddrPort(addr) }
	}
	from := func(sources ...netip.Prefix) func(*proxy.ServicePort) {
		return func(p *proxy.ServicePort) { p.Frontends[0].Restricted, p.Frontends[0].AllowedSources = true, sources }
	}
	pools := func(cluster, local []*endpoints.Endpoint) func(*proxy.ServicePort) {
		return func(p *proxy.ServicePort) { p.Cluster, p.Local = cluster, local }
	}
	four, six := []*endpoints.Endpoint{endpoint(v1.IPv4Protocol, 1, 80)}, []*endpoints.Endpoint{endpoint(v1.IPv6Protocol, 1, 80)}
	mapped := []*endpoints.Endpoint{{Addr: netip.MustParseAddrPort("[::ffff:10.0.0.1]:80")}}
	for _, c := range []struct {
		name   string
		change func(*proxy.ServicePort)
		bad    bool
	}{
		{"nothing", func(*proxy.ServicePort) {}, false},
		{"a node port", func(p *proxy.ServicePort) { p.Frontends = append(p.Frontends, nodePort(v1.IPv4Protocol, 30000)) }, false},
		{"a node port of the other family", func(p *proxy.ServicePort) { p.Frontends = append(p.Frontends, nodePort(v1.IPv6Protocol, 30000)) }, true},
		{"an unspecified frontend", at("0.0.0.0:80"), true},
		{"a frontend in IPv6 form", at("[::ffff:10.128.0.1]:80"), false},
		{"a frontend of the other family", at("[fd00:96::1]:80"), true},
		{"no frontend address", func(p *proxy.ServicePort) { p.Frontends[0].Addr = netip.AddrPort{} }, true},
		{"closed to all", from(), false},
		{"source ranges", from(allowedSources(v1.IPv4Protocol)...), false},
		{"source ranges of the other family", from(allowedSources(v1.IPv6Protocol)...), true},
		{"a source range that is none", from(netip.Prefix{}), true},
		{"both pools", pools(four, four), false},
		{"endpoints in IPv6 form", pools(mapped, mapped), false},
		{"endpoints of the other family", pools(six, four), true},
		{"local endpoints of the other family", pools(four, six), true},
		{"no endpoints for a route", pools(nil, four), true},
		{"a route that leaves traffic alone", func(p *proxy.ServicePort) { p.Frontends[0].FromOutside.Action = proxy.Pass }, true},
		{"another protocol", func(p *proxy.ServicePort) { p.Name.Protocol = "ICMP" }, true},
		{"no family", func(p *proxy.ServicePort) { p.Name.Family = "" }, true},
		{"endpoints without address", pools([]*endpoints.Endpoint{{}}, nil), true},
	} {
		p := newPort(v1.IPv4Protocol, 0, 1)
		c.change(p)
		if err := fault(p); (err != nil) != c.bad {
			t.Errorf("%s: got error %v, want one: %t", c.name, err, c.bad)
		}
	}
}
