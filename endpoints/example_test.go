package endpoints_test

import (
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/endpoints"
)

// The last local endpoint terminates: the Local policy still selects it, the Cluster
// policy selects those that are ready on other nodes.
func ExampleSelect() {
	all := []*endpoints.Endpoint{
		{Addr: netip.MustParseAddrPort("10.1.0.7:8080"), NodeName: "here", Local: true, Serving: true, Terminating: true},
		{Addr: netip.MustParseAddrPort("10.1.1.4:8080"), NodeName: "there", Ready: true, Serving: true},
		{Addr: netip.MustParseAddrPort("10.1.1.5:8080"), NodeName: "there"},
	}
	s := endpoints.Select(all, endpoints.Policy{Cluster: true, Local: true})
	for _, e := range s.Cluster {
		fmt.Println("cluster:", e.Addr)
	}
	for _, e := range s.Local {
		fmt.Println("local:  ", e.Addr)
	}
	// Output:
	// cluster: 10.1.1.4:8080
	// local:   10.1.0.7:8080
}

func ExampleCache() {
	cache := endpoints.NewCache(endpoints.View{NodeName: "here"}, func(key endpoints.ServicePortName) {
		fmt.Println("changed:", key.NamespacedName, key.Port)
	})
	http, port, node := "http", int32(8080), "here"
	err := cache.Update(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop",
			Name:      "cart-x7k2p",
			Labels:    map[string]string{discoveryv1.LabelServiceName: "cart"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &http, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.1.1.4"}},
			{Addresses: []string{"10.1.0.7"}, NodeName: &node},
			{Addresses: []string{"127.0.0.1"}},
		},
	})
	fmt.Println("wrong:", err)

	for _, e := range cache.Endpoints(endpoints.ServicePortName{
		NamespacedName: types.NamespacedName{Namespace: "shop", Name: "cart"},
		Port:           "http",
		Protocol:       v1.ProtocolTCP,
		Family:         v1.IPv4Protocol,
	}) {
		fmt.Println(e.Addr, e.Local)
	}
	// Output:
	// changed: shop/cart http
	// wrong: endpoints[2].addresses[0]: 127.0.0.1 is a loopback address, endpoint not used
	// 10.1.0.7:8080 true
	// 10.1.1.4:8080 false
}
