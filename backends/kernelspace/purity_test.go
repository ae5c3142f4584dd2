package kernelspace

import (
	"net/netip"
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Objects follow from the world and the service port alone. Service ports render a shared object with one value, also if
// one has the ClusterIP of another one as endpoint, names another node for it, or has another annotation.
func TestRenderIsPure(t *testing.T) {
	o, err := Options{Network: "pods", HealthChecks: HealthChecks{Endpoint: "cbr0", Port: 10256}}.complete()
	testenv.NoError(t, err)
	vip, lb := netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("203.0.113.1:80")
	var ports []*proxy.ServicePort
	for i, node := range []string{"", "node-2", "node-3"} {
		p := &proxy.ServicePort{HasEndpoints: true, Annotations: map[string]string{PreserveDestinationAnnotation: []string{"", "true"}[i%2]}}
		p.Name.Name, p.Name.Family, p.Name.Protocol = node, v1.IPv4Protocol, v1.ProtocolTCP
		p.Cluster = []*endpoints.Endpoint{{Addr: vip, NodeName: node, Ready: true, Local: node == "node-3"}}
		route := proxy.TrafficRoute{Action: proxy.Forward}
		p.Frontends = []proxy.Frontend{{Kind: proxy.ClusterIP, Addr: vip, FromInside: route}, {Kind: proxy.LoadBalancer, Addr: lb, FromOutside: route}}
		ports = append(ports, p)
	}
	node := &proxy.Node{Addresses: []netip.Addr{netip.MustParseAddr("172.18.0.2")}}
	last := &target{options: o}
	for _, overlay := range []bool{false, true, false} {
		env := backends.Env{Node: node, Facts: facts{features: hcn.Version{Major: 16, Minor: 1}.Features(), overlay: overlay}}
		values, rendered := map[key]value{}, 0
		for _, p := range ports {
			got, want := last.Render(env, p, nil), (&target{options: o}).Render(env, p, nil)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("overlay %t, port %v: got %v after other worlds, want %v", overlay, p.Name, got, want)
			}
			for _, x := range got {
				rendered++
				if v, known := values[x.Key]; known && x.Key.Shared() && v != x.Value {
					t.Errorf("overlay %t, %v: got value %+v, want %+v as another service port has it", overlay, x.Key, x.Value, v)
				}
				values[x.Key] = x.Value
			}
		}
		if rendered < 2*len(ports) {
			t.Errorf("overlay %t: got %d objects, so the test shows nothing", overlay, rendered)
		}
	}
}
