package kubewatch_test

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/kubewatch"
)

// A tracker that is fed by an API server. An agent makes its client with NewClient;
// here a fake one stands for the API server.
func ExampleSource() {
	client := fake.NewClientset(&v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: "10.96.0.20", ClusterIPs: []string{"10.96.0.20"},
			IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Ports:      []v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP}},
		},
	})
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	source := kubewatch.Source{Client: client, Handler: tracker, NodeName: "node-1"}

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- source.Run(ctx) }()

	snapshot, err := tracker.Next(ctx, proxy.Snapshot{})
	if err != nil {
		fmt.Println(err)
	}
	for port := range snapshot.All() {
		fmt.Println(port.Name, port.Frontends[0].Addr)
	}
	cancel()
	fmt.Println(<-done)
	// Output:
	// default/web/TCP/IPv4 10.96.0.20:80
	// <nil>
}
