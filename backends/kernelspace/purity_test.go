package kernelspace

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Render has no state: objects follow from the world and the service port alone. Service ports render shared endpoints
// with one value, also if one has the ClusterIP of another one as endpoint, or names another node for it.
func TestRenderIsPure(t *testing.T) {
	random := testenv.Random(t)
	o, err := Options{
		Network: "pods", SourceVIPs: []netip.Addr{netip.MustParseAddr("192.0.2.250")}, HealthChecks: HealthChecks{Endpoint: "cbr0", Port: 10256},
	}.complete()
	testenv.NoError(t, err)
	modern := hcn.Version{Major: 16, Minor: 1}.Features()
	network := hcn.Network{Name: "pods", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}
	var all []stagetest.Rendering
	for _, node := range []*proxy.Node{stagetest.Node(), {Addresses: []netip.Addr{netip.MustParseAddr("172.18.0.2")}}} {
		for _, known := range []any{nil, facts{}, facts{features: modern, network: network}, facts{features: modern, network: network, overlay: true}} {
			env := backends.Env{Node: node, Facts: known}
			all = append(all, stagetest.Rendering{Env: env})
			for i := range 60 {
				p := stagetest.RandomPort(random, i)
				for _, at := range []netip.AddrPort{netip.MustParseAddrPort("192.0.2.77:80"), p.Frontends[0].Addr} {
					p.Cluster = append(p.Cluster, &endpoints.Endpoint{Addr: at, NodeName: fmt.Sprint("node-", random.IntN(3)), Ready: true})
				}
				if p.Annotations = map[string]string{}; random.IntN(3) == 0 {
					p.Annotations[PreserveDestinationAnnotation] = "true"
				}
				all = append(all, stagetest.Rendering{Env: env, Port: p})
			}
		}
	}
	stagetest.RunPurity(t, random, all, func() (backends.Render[key, value], func([]object) string) {
		t := &target{options: o}
		return t.Render, func(list []object) string { return fmt.Sprint(list) }
	})
}
