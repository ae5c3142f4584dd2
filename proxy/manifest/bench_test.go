package manifest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// counter is a handler that only counts.
type counter struct{ calls, synced int }

func (c *counter) UpdateService(*v1.Service)                      { c.calls++ }
func (c *counter) DeleteService(types.NamespacedName)             { c.calls++ }
func (c *counter) UpdateEndpointSlice(*discoveryv1.EndpointSlice) { c.calls++ }
func (c *counter) DeleteEndpointSlice(types.NamespacedName)       { c.calls++ }
func (c *counter) UpdateNode(*v1.Node)                            { c.calls++ }
func (c *counter) Synced()                                        { c.synced++ }

// clusterList returns n Services and n EndpointSlices with three endpoints each,
// as kubectl prints them, about 2.4 kB a pair.
func clusterList(n int) []byte {
	var b bytes.Buffer
	b.WriteString("apiVersion: v1\nitems:\n")
	for i := range n {
		fmt.Fprintf(&b, `- apiVersion: v1
  kind: Service
  metadata:
    annotations:
      kubectl.kubernetes.io/last-applied-configuration: |
        {"apiVersion":"v1","kind":"Service","metadata":{"annotations":{},"name":"web-%[1]d","namespace":"shop"},"spec":{"ports":[{"name":"http","port":80}]}}
    creationTimestamp: "2025-06-11T12:00:10Z"
    labels:
      app: web-%[1]d
    name: web-%[1]d
    namespace: shop
    resourceVersion: "90417"
    uid: c7a5c3ac-6f0b-4a3e-8a53-9c4f8f43d6b2
  spec:
    clusterIP: 10.96.%[2]d.%[3]d
    clusterIPs:
    - 10.96.%[2]d.%[3]d
    internalTrafficPolicy: Cluster
    ipFamilies:
    - IPv4
    ipFamilyPolicy: SingleStack
    ports:
    - name: http
      port: 80
      protocol: TCP
      targetPort: 8080
    selector:
      app: web-%[1]d
    sessionAffinity: None
    type: ClusterIP
  status:
    loadBalancer: {}
`, i, i/256, i%256)
	}
	for i := range n {
		b.WriteString("- addressType: IPv4\n  apiVersion: discovery.k8s.io/v1\n  endpoints:\n")
		for e := range 3 {
			fmt.Fprintf(&b, `  - addresses:
    - 10.%[3]d.%[1]d.%[2]d
    conditions:
      ready: true
      serving: true
      terminating: false
    nodeName: worker-%[3]d
    targetRef:
      kind: Pod
      name: web-7d4f9c6b5d-%[3]d
      namespace: shop
      uid: 6d4e6b8e-3c36-46ad-a1d6-0f4a1c1b7f10
    zone: eu-1a
`, i/256, i%256, e+1)
		}
		fmt.Fprintf(&b, `  kind: EndpointSlice
  metadata:
    creationTimestamp: "2025-06-11T12:00:10Z"
    generateName: web-%[1]d-
    generation: 14
    labels:
      endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io
      kubernetes.io/service-name: web-%[1]d
    name: web-%[1]d-6fx2d
    namespace: shop
    ownerReferences:
    - apiVersion: v1
      blockOwnerDeletion: true
      controller: true
      kind: Service
      name: web-%[1]d
      uid: c7a5c3ac-6f0b-4a3e-8a53-9c4f8f43d6b2
    resourceVersion: "90631"
    uid: 4c0a0d68-2cb8-4f60-8d2c-1a3cb8d2a1de
  ports:
  - name: http
    port: 8080
    protocol: TCP
`, i)
	}
	b.WriteString("kind: List\nmetadata:\n  resourceVersion: \"\"\n")
	return b.Bytes()
}

// BenchmarkLoad loads 10,000 Services and 10,000 EndpointSlices, as a List in JSON and as documents in YAML; a
// List in YAML may have about a third of them (maxYAML).
func BenchmarkLoad(b *testing.B) {
	const many, some = 10_000, 3_000
	list := clusterList(many)
	inJSON, err := yaml.ToJSON(list)
	testenv.NoError(b, err)
	for _, c := range []struct {
		name string
		data []byte
		n    int
	}{{"documents.yaml", asDocuments(list), many}, {"list.json", inJSON, many}, {"list.yaml", clusterList(some), some}} {
		b.Run(c.name, func(b *testing.B) {
			n := c.n
			path := filepath.Join(b.TempDir(), c.name)
			testenv.NoError(b, os.WriteFile(path, c.data, 0o600))
			b.SetBytes(int64(len(c.data)))
			b.ReportAllocs()
			for b.Loop() {
				var h counter
				testenv.NoError(b, (&Source{Path: path, Handler: &h}).Load(b.Context()))
				if h.calls != 2*n || h.synced != 1 {
					b.Fatalf("%d objects, synced %d times; want %d, once", h.calls, h.synced, 2*n)
				}
			}
		})
	}
}

// asDocuments returns the items of a List of clusterList as documents.
func asDocuments(list []byte) []byte {
	_, items, _ := bytes.Cut(list, []byte("\nitems:\n- "))
	items, _, _ = bytes.Cut(items, []byte("\nkind: List\n"))
	all := bytes.Split(items, []byte("\n- "))
	for i := range all {
		all[i] = bytes.ReplaceAll(all[i], []byte("\n  "), []byte("\n"))
	}
	return append(bytes.Join(all, []byte("\n---\n")), '\n')
}

// BenchmarkCheck checks a folder of 100 files in which nothing changed.
func BenchmarkCheck(b *testing.B) {
	dir := b.TempDir()
	for i := range 100 {
		write(b, dir, fmt.Sprintf("%03d.yaml", i), service(fmt.Sprintf("s%d", i), 80))
	}
	var h counter
	f, err := newFollower(&Source{Path: dir, Handler: &h})
	testenv.NoError(b, err)
	untilStable(b, f)
	for _, file := range f.files {
		file.read = file.seen // as if they were old
	}
	b.ReportAllocs()
	for b.Loop() {
		untilStable(b, f)
	}
	if h.calls != 100 || h.synced != 1 {
		b.Fatalf("%d calls, synced %d times; want 100, once", h.calls, h.synced)
	}
}
