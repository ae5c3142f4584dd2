package vipkit_test

import (
	"context"
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/proxy"
)

// memory is a backend that only prints what it would have to program.
type memory struct{ proxy.NoAbilities }

func (memory) Apply(_ context.Context, old, new proxy.Snapshot) error {
	for change := range new.Changes(old) {
		gained, lost := change.Endpoints()
		fmt.Println(change.New.Name, "answers at", change.New.Frontends[0].Addr, "by", gained, "and not by", lost)
	}
	return nil
}

func (memory) Cleanup(context.Context) error { return nil }

// The parts of a service proxy: a tracker makes snapshots of API objects, a runner applies them by
// a backend, and Route explains them. A real proxy has a backend such as nftables.New, and
// gets its objects from package kubewatch.
func Example() {
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	tracker.UpdateService(&v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       v1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: []v1.ServicePort{{Name: "http", Port: 80}}},
	})
	tracker.UpdateEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.11"}}, {Addresses: []string{"10.244.2.11"}}},
	})
	tracker.Synced() // All objects that exist are handed over.

	ctx, stop := context.WithCancel(context.Background())
	runner := proxy.Runner{Source: tracker, Backend: memory{}, Observers: []proxy.Observer{{Synced: func(s proxy.Sync) {
		verdict := proxy.Route(s.Snapshot, proxy.Packet{
			Protocol:    v1.ProtocolTCP,
			Source:      netip.MustParseAddrPort("192.0.2.10:40000"),
			Destination: netip.MustParseAddrPort("10.96.0.10:80"),
		})
		fmt.Println("a packet to it:", verdict.Action, "to one of", len(verdict.Endpoints))
		stop() // A real proxy runs on.
	}}}}
	if err := runner.Run(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// default/web:http/TCP/IPv4 answers at 10.96.0.10:80 by [10.244.1.11:8080 10.244.2.11:8080] and not by []
	// a packet to it: forward to one of 2
}
