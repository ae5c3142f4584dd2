package kubewatch_test

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/kubewatch"
)

// addEventHandlers adds event handlers to informers, and returns the registrations that
// AwaitSynced must wait for: without that of ServiceCIDRs, which an API server may not have.
func addEventHandlers(factory informers.SharedInformerFactory, events *kubewatch.Events) (synced []cache.InformerSynced, err error) {
	for informer, handler := range map[cache.SharedInformer]cache.ResourceEventHandler{
		factory.Core().V1().Services().Informer():            events.Services(),
		factory.Discovery().V1().EndpointSlices().Informer(): events.EndpointSlices(),
		factory.Core().V1().Nodes().Informer():               events.Nodes(),
	} {
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return nil, err
		}
		synced = append(synced, registration.HasSynced)
	}
	_, err = factory.Networking().V1().ServiceCIDRs().Informer().AddEventHandler(events.ServiceCIDRs())
	return synced, err
}

// A tracker that receives the objects of informers that the program has already.
func ExampleEvents() {
	client := fakeClient(&v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       v1.ServiceSpec{ClusterIP: "10.96.0.20", Ports: []v1.ServicePort{{Port: 80}}},
	})
	factory := informers.NewSharedInformerFactory(client, 0)
	ctx, cancel := context.WithCancel(context.Background())
	defer factory.Shutdown()
	defer cancel()

	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	events := &kubewatch.Events{Handler: tracker, NodeName: "node-1"}
	synced, err := addEventHandlers(factory, events)
	if err != nil {
		fmt.Println(err)
		return
	}
	factory.Start(ctx.Done())
	if err := events.AwaitSynced(ctx, synced...); err != nil {
		fmt.Println(err)
	}
	snapshot, err := tracker.Next(ctx, proxy.Snapshot{})
	fmt.Println(snapshot.Len(), err)
	// Output: 1 <nil>
}
