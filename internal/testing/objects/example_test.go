package objects_test

import (
	"fmt"
	"math/rand/v2"

	"github.com/vipkit/vipkit/internal/testing/objects"
)

// A dual-stack Service with two ports, and one of its EndpointSlices.
func Example() {
	s := objects.Service("shop/web", "10.96.0.1 fd00:96::1", objects.Ports("http 80:30080", "dns 53/UDP"), objects.LoadBalancer("203.0.113.1"), objects.ExternalLocal)
	e := objects.Slice("shop/web-1", "web", "10.1.0.1 @node-1", "10.1.0.2 T @node-2 zones=a,b")
	fmt.Println(s.Spec.Type, s.Spec.ClusterIPs, s.Spec.IPFamilies, s.Spec.ExternalTrafficPolicy)
	for _, p := range s.Spec.Ports {
		fmt.Println(p.Name, p.Port, p.NodePort, p.Protocol)
	}
	fmt.Println(*e.Endpoints[0].NodeName, e.Endpoints[0].Conditions.Ready == nil)
	fmt.Println(*e.Endpoints[1].Conditions.Serving, *e.Endpoints[1].Conditions.Terminating, e.Endpoints[1].Hints.ForZones)
	// Output:
	// LoadBalancer [10.96.0.1 fd00:96::1] [IPv4 IPv6] Local
	// http 80 30080 TCP
	// dns 53 0 UDP
	// node-1 true
	// true true [{a} {b}]
}

// A generator changes objects a little each time. Tests take the random numbers of
// testenv.Random, which logs the seed.
func ExampleGenerator() {
	g := objects.Generator{Rand: rand.New(rand.NewPCG(1, 2)), Node: "node-1", Unusual: 20}
	service := g.Service("shop/web", nil)
	slice := g.Slice("shop/web-1", nil)
	for range 3 {
		service, slice = g.Service("shop/web", service), g.Slice("shop/web-1", slice)
	}
	fmt.Println(service.Name, slice.Name)
	// Output: web web-1
}
