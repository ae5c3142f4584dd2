package proxy_test

import (
	"context"
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/proxy"
)

// shop is a Service at one virtual IP, and shopPods are the two pods behind it.
func shop() *v1.Service {
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "shop"},
		Spec: v1.ServiceSpec{
			ClusterIP: "10.96.0.10",
			Ports:     []v1.ServicePort{{Name: "http", Protocol: v1.ProtocolTCP, Port: 80}},
		},
	}
}

func shopPods() *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "shop-x7k2p",
			Labels: map[string]string{discoveryv1.LabelServiceName: "shop"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(v1.ProtocolTCP), Port: new(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.244.1.5"}, NodeName: new("node-1")},
			{Addresses: []string{"10.244.2.7"}, NodeName: new("node-2")},
		},
	}
}

// newTracker returns a tracker for node-1 whose pods have addresses in 10.244.0.0/16.
func newTracker() *proxy.ServiceChangeTracker {
	return proxy.NewServiceChangeTracker(proxy.TrackerOptions{
		NodeName:     "node-1",
		LocalTraffic: proxy.LocalTraffic{Sources: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
	})
}

// A tracker receives objects in any order and makes snapshots. Snapshot.Changes compares two
// of them.
func ExampleServiceChangeTracker() {
	ctx := context.Background()
	tracker := newTracker()
	tracker.UpdateService(shop())
	tracker.Synced()
	first, err := tracker.Next(ctx, proxy.Snapshot{})
	if err != nil {
		fmt.Println(err)
		return
	}
	tracker.UpdateEndpointSlice(shopPods())
	second, err := tracker.Next(ctx, first)
	if err != nil {
		fmt.Println(err)
		return
	}
	for change := range second.Changes(first) {
		fmt.Println(change.New.Name)
		fmt.Println(change.Old.Frontends[0].Addr, change.Old.Frontends[0].FromInside.Action)
		fmt.Println(change.New.Frontends[0].Addr, change.New.Frontends[0].FromInside.Action)
		for _, e := range change.New.Cluster {
			fmt.Println(e.Addr, "local:", e.Local)
		}
	}
	// Output:
	// default/shop:http/TCP/IPv4
	// 10.96.0.10:80 reject
	// 10.96.0.10:80 forward
	// 10.244.1.5:8080 local: true
	// 10.244.2.7:8080 local: false
}

// Service ports have the annotations that the options name, and no others.
func ExampleTrackerOptions() {
	const scheduler = "example.com/ipvs-scheduler"
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{Annotations: []string{scheduler}})
	service := shop()
	service.Annotations = map[string]string{scheduler: "wrr", "example.com/contact": "shop@example.com"}
	tracker.UpdateService(service)
	tracker.Synced()
	snapshot, err := tracker.Next(context.Background(), proxy.Snapshot{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for port := range snapshot.All() {
		fmt.Println(port.Name, port.Annotations)
	}
	// Output:
	// default/shop:http/TCP/IPv4 map[example.com/ipvs-scheduler:wrr]
}

// Route returns what must happen to a packet, and why.
func ExampleRoute() {
	tracker := newTracker()
	tracker.UpdateService(shop())
	tracker.UpdateEndpointSlice(shopPods())
	tracker.Synced()
	snapshot, err := tracker.Next(context.Background(), proxy.Snapshot{})
	if err != nil {
		fmt.Println(err)
		return
	}
	verdict := proxy.Route(snapshot, proxy.Packet{
		Protocol:    v1.ProtocolTCP,
		Source:      netip.MustParseAddrPort("10.244.1.5:40000"), // a pod that is itself behind the Service
		Destination: netip.MustParseAddrPort("10.96.0.10:80"),
		Interface:   "veth5",
	})
	fmt.Println(verdict.Action)
	for _, to := range verdict.Endpoints {
		fmt.Println("to", to.Addr, "masquerade:", to.Masquerade)
	}
	for _, reason := range verdict.Reasons {
		fmt.Println("because", reason)
	}
	// Output:
	// forward
	// to 10.244.1.5:8080 masquerade: true
	// to 10.244.2.7:8080 masquerade: false
	// because 10.96.0.10:80/TCP is the ClusterIP of default/shop:http/TCP/IPv4
	// because the packet comes from a pod
	// because one of the 2 endpoints of the cluster pool gets it; masquerade: non-pods
	// because client and endpoint are both 10.244.1.5:8080 (hairpin), so the packet is masqueraded
}

// printer is a backend that programs nothing.
type printer struct {
	proxy.NoAbilities
	done func()
}

func (p printer) Apply(_ context.Context, old, new proxy.Snapshot) error {
	defer p.done()
	for change := range new.Changes(old) {
		if port := change.New; port != nil {
			fmt.Println(port.Name, "at", port.Frontends[0].Addr, "has", len(port.Cluster), "endpoints")
		}
	}
	return nil
}

func (p printer) Cleanup(context.Context) error { return nil }

// A Runner applies snapshots with a backend.
func ExampleRunner() {
	tracker := newTracker()
	tracker.UpdateService(shop())
	tracker.UpdateEndpointSlice(shopPods())
	tracker.Synced()
	ctx, cancel := context.WithCancel(context.Background())
	runner := proxy.Runner{Source: tracker, Backend: printer{done: cancel}}
	fmt.Println("ended with", runner.Run(ctx))
	// Output:
	// default/shop:http/TCP/IPv4 at 10.96.0.10:80 has 2 endpoints
	// ended with <nil>
}
