package peer_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/vipkit/vipkit/internal/peer/controlplane"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/kubewatch"
)

const (
	patience = 2 * time.Minute
	nodeName = "node-1"
)

// watched is a cluster and a tracker of its objects.
type watched struct {
	t        *testing.T
	cp       *controlplane.ControlPlane
	client   kubernetes.Interface
	tracker  *proxy.ServiceChangeTracker
	failures chan error
	seen     proxy.Snapshot
}

// watch watches a cluster of one node until the test ends.
func watch(t *testing.T) *watched {
	t.Helper()
	w := &watched{
		t: t, cp: controlplane.Start(t, controlplane.Options{ServiceRange: "10.99.0.0/24"}),
		tracker:  proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: nodeName}),
		failures: make(chan error, 1000),
	}
	var err error
	if w.client, err = kubewatch.NewClient(w.cp.Config()); err != nil {
		t.Fatal(err)
	}
	w.putNode("zone-a", "10.0.0.1")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	source := kubewatch.Source{Client: w.client, Handler: w.tracker, NodeName: nodeName, Report: w.report}
	go func() { done <- source.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v, want no error", err)
		}
	})
	return w
}

func (w *watched) report(err error) {
	select {
	case w.failures <- err:
	default:
	}
}

// next waits for a snapshot that differs from the last one.
func (w *watched) next(wanted string) proxy.Snapshot {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	s, err := w.tracker.Next(ctx, w.seen)
	if err != nil {
		w.t.Fatalf("waiting for %s: %v; the last snapshot has\n%s", wanted, err, strings.Join(describe(w.seen), "\n"))
	}
	w.seen = s
	return s
}

// until waits for a snapshot. No snapshot before it may lack a line of always.
func (w *watched) until(always []string, want ...string) {
	w.t.Helper()
	for {
		got := describe(w.next(strings.Join(want, ", ")))
		for _, line := range always {
			if !slices.Contains(got, line) {
				w.t.Fatalf("snapshot: got\n%s\nwant also %q", strings.Join(got, "\n"), line)
			}
		}
		if cmp.Equal(got, want) {
			return
		}
	}
}

// describe returns a line for the node and one for each port.
func describe(s proxy.Snapshot) []string {
	if s.IsZero() {
		return nil
	}
	n := s.Node()
	lines := []string{fmt.Sprintf("%s in %s at %v serves %v", n.Name, n.Zone, n.Addresses, n.ServiceCIDRs)}
	for port := range s.All() {
		line := port.Name.String() + " " + port.Frontends[0].Addr.String() + " ->"
		for _, e := range port.Cluster {
			line += " " + e.Addr.String()
		}
		lines = append(lines, line)
	}
	return lines
}

// must checks the error of a request whose response does not matter.
func must[T any](t *testing.T) func(T, error) {
	return func(_ T, err error) {
		t.Helper()
		testenv.NoError(t, err)
	}
}

func (w *watched) putNode(zone string, address string) {
	w.t.Helper()
	nodes := w.client.CoreV1().Nodes()
	n := objects.Node(nodeName, zone)
	current, err := nodes.Get(w.t.Context(), nodeName, metav1.GetOptions{})
	if err == nil {
		n.ResourceVersion = current.ResourceVersion
		n, err = nodes.Update(w.t.Context(), n, metav1.UpdateOptions{})
	} else {
		n, err = nodes.Create(w.t.Context(), n, metav1.CreateOptions{})
	}
	testenv.NoError(w.t, err)
	n.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: address}}
	must[*v1.Node](w.t)(nodes.UpdateStatus(w.t.Context(), n, metav1.UpdateOptions{}))
}

// makeService creates a Service with one endpoint.
func (w *watched) makeService(name, clusterIP, endpoint string) {
	w.t.Helper()
	must[*v1.Service](w.t)(w.client.CoreV1().Services("default").Create(w.t.Context(), &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.ServiceSpec{ClusterIP: clusterIP, Ports: []v1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{}))
	at := netip.MustParseAddrPort(endpoint)
	slice := objects.Slice(name+"-1", name, at.Addr().String()+" R")
	slice.Ports = objects.SlicePorts(fmt.Sprint(at.Port()))
	must[*discoveryv1.EndpointSlice](w.t)(w.client.DiscoveryV1().EndpointSlices("default").Create(w.t.Context(), slice, metav1.CreateOptions{}))
}

func (w *watched) deleteService(name string) {
	w.t.Helper()
	for _, err := range []error{
		w.client.CoreV1().Services("default").Delete(w.t.Context(), name, metav1.DeleteOptions{}),
		w.client.DiscoveryV1().EndpointSlices("default").Delete(w.t.Context(), name+"-1", metav1.DeleteOptions{}),
	} {
		testenv.NoError(w.t, err)
	}
}

// TestWatchSurvivesAPIServer watches the objects of a real API server. While the API server is
// down, the tracker must keep its snapshot.
func TestWatchSurvivesAPIServer(t *testing.T) {
	w := watch(t)
	const (
		node       = "node-1 in zone-a at [10.0.0.1] serves [10.99.0.0/24]"
		api        = "default/kubernetes:https/TCP/IPv4 10.99.0.1:443 ->"
		old        = "default/old/TCP/IPv4 10.99.0.100:80 -> 10.1.0.1:8080"
		web        = "default/web/TCP/IPv4 10.99.0.101:80 -> 10.1.0.2:8080"
		late       = "default/late/TCP/IPv4 10.99.0.102:80 -> 10.1.0.3:8080"
		secondHome = "node-1 in zone-b at [10.0.0.2] serves [10.99.0.0/24 10.100.0.0/24]"
	)
	w.makeService("old", "10.99.0.100", "10.1.0.1:8080")
	w.makeService("web", "10.99.0.101", "10.1.0.2:8080")
	w.until(nil, node, api, old, web)

	before := w.seen
	w.cp.Kill()
	for range 4 { // at least one for each kind of object
		select {
		case err := <-w.failures:
			t.Log(err)
		case <-time.After(patience):
			t.Fatal("reported errors after the API server was killed: got fewer than 4")
		}
	}
	if now, err := w.tracker.Next(t.Context(), proxy.Snapshot{}); err != nil || now.Generation() != before.Generation() {
		t.Errorf("without an API server: got generation %d, error %v; want generation %d as before",
			now.Generation(), err, before.Generation())
	}

	w.cp.Restart()
	w.makeService("late", "10.99.0.102", "10.1.0.3:8080")
	w.deleteService("old")
	w.until([]string{node, api, web}, node, api, late, web)

	w.putNode("zone-b", "10.0.0.2")
	must[*networkingv1.ServiceCIDR](t)(w.client.NetworkingV1().ServiceCIDRs().Create(t.Context(), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.100.0.0/24"}},
	}, metav1.CreateOptions{}))
	w.until([]string{api, late, web}, secondHome, api, late, web)
}
