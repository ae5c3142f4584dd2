package manifest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/manifest"
)

// A tracker is a Handler.
var _ manifest.Handler = (*proxy.ServiceChangeTracker)(nil)

// printer is a Handler in place of a tracker.
type printer struct{}

func (printer) UpdateService(s *v1.Service) {
	fmt.Printf("Service %s/%s at %s, port %d/%s\n", s.Namespace, s.Name, s.Spec.ClusterIP, s.Spec.Ports[0].Port, s.Spec.Ports[0].Protocol)
}

func (printer) UpdateEndpointSlice(s *discoveryv1.EndpointSlice) {
	fmt.Printf("EndpointSlice %s/%s with %d endpoints\n", s.Namespace, s.Name, len(s.Endpoints))
}

func (printer) UpdateNode(n *v1.Node)                      { fmt.Println("Node", n.Name) }
func (printer) DeleteService(n types.NamespacedName)       { fmt.Println("no Service", n) }
func (printer) DeleteEndpointSlice(n types.NamespacedName) { fmt.Println("no EndpointSlice", n) }
func (printer) Synced()                                    { fmt.Println("synced") }

const objects = `
apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  clusterIP: 10.96.0.20
  ports:
  - port: 80
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  labels:
    kubernetes.io/service-name: web
addressType: IPv4
endpoints:
- addresses: [10.244.1.12]
- addresses: [10.244.2.31]
ports:
- port: 8080
---
apiVersion: v1
kind: Service
metadata: {}
`

// Load hands over the good objects and returns the errors of the others, with their lines. A
// program that keeps running calls Run, which follows the files.
func ExampleWatcher() {
	dir, err := os.MkdirTemp("", "manifests")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Println(err)
		}
	}()
	path := filepath.Join(dir, "web.yaml")
	if err := os.WriteFile(path, []byte(objects), 0o600); err != nil {
		fmt.Println(err)
		return
	}

	watcher := manifest.Watcher{Path: path, Handler: printer{}}
	err = watcher.Load(context.Background())
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		for _, e := range joined.Unwrap() {
			if bad, ok := errors.AsType[*manifest.DocumentError](e); ok {
				fmt.Printf("line %d: %v\n", bad.Line, bad.Err)
			}
		}
	}
	// Output:
	// Service default/web at 10.96.0.20, port 80/TCP
	// EndpointSlice default/web-1 with 2 endpoints
	// synced
	// line 24: Service without metadata.name
}
