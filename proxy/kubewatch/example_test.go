package kubewatch_test

import (
	"context"
	"fmt"
	"log"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/kubewatch"
)

// A tracker that receives the objects of an API server. An agent makes its client with
// NewClient; here a fake one replaces the API server.
func ExampleWatcher() {
	client := fakeClient(&v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: "10.96.0.20", ClusterIPs: []string{"10.96.0.20"},
			IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Ports:      []v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP}},
		},
	})
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	watcher := kubewatch.Watcher{Client: client, Handler: tracker, NodeName: "node-1"}

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- watcher.Run(ctx) }()

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

// A tracker that receives the objects of the cluster in which the program is a pod.
func ExampleNewClient() {
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	config, err := rest.InClusterConfig()
	if err != nil {
		return
	}
	client, err := kubewatch.NewClient(config)
	if err != nil {
		return
	}
	watcher := kubewatch.Watcher{Client: client, NodeName: "node-1", Handler: tracker, Report: func(err error) { log.Print(err) }}
	fmt.Println(watcher.Run(context.Background()))
}
