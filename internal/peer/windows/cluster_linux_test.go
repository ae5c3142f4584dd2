package windows_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/vipkit/vipkit/backends/kernelspace"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/internal/peer/controlplane"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

const (
	nodeName    = "node-1"
	nodeIP      = "192.0.2.1"
	nodeIP6     = "2001:db8::1"
	networkName = "l2bridge0"
	podsANode   = 6
	podPort     = 8000 // of the first port of a Service
)

// podIP is an address of a pod: of this node, or of another one.
func podIP(p pod, family v1.IPFamily) string {
	node := 1
	if p.remote {
		node = 2
	}
	if family == v1.IPv6Protocol {
		return fmt.Sprintf("fd00:244:0:%d::%d", node, p.number)
	}
	return fmt.Sprintf("10.244.%d.%d", node, p.number)
}

// newHNS returns a simulated HNS of Windows Server 2025, with a network and the pods of this node.
func newHNS(t *testing.T) *hcntest.Sim {
	t.Helper()
	sim := hcntest.New(hcn.Version{Major: 16}, netip.MustParseAddr(nodeIP))
	network := sim.AddNetwork(hcn.Network{Name: networkName, Type: "L2Bridge"})
	for i := 1; i <= podsANode; i++ {
		p := pod{number: i}
		_, err := sim.AddEndpoint(network, fmt.Sprintf("pod-%d", i),
			netip.MustParseAddr(podIP(p, v1.IPv4Protocol)), netip.MustParseAddr(podIP(p, v1.IPv6Protocol)))
		testenv.NoError(t, err)
	}
	return sim
}

// cluster is the objects of an API server.
type cluster struct {
	t      *testing.T
	client kubernetes.Interface
	config string // path of a kubeconfig, as programs of Windows see it
	// host is the URL of the API server, and token the token of a client with all permissions.
	host, token string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	cp := controlplane.Start(t, controlplane.Options{})
	client, err := kubernetes.NewForConfig(cp.Config())
	testenv.NoError(t, err)
	c := &cluster{t: t, client: client, host: cp.Config().Host, token: cp.Config().BearerToken}
	c.config = c.kubeconfig(c.host)
	node := must(c, func() (*v1.Node, error) {
		return client.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, metav1.CreateOptions{})
	})
	for _, address := range []string{nodeIP, nodeIP6} {
		node.Status.Addresses = append(node.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: address})
	}
	must(c, func() (*v1.Node, error) {
		return client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	})
	return c
}

// kubeconfig writes a file for clients that reach the API server at a URL. It returns its path, as programs
// of Windows see it.
func (c *cluster) kubeconfig(server string) string {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), "kubeconfig")
	controlplane.Kubeconfig(c.t, path, server, c.token)
	return "Z:" + path
}

// must returns the result of a request that must succeed.
func must[T any](c *cluster, request func() (T, error)) T {
	c.t.Helper()
	result, err := request()
	testenv.NoError(c.t, err)
	return result
}

// create creates a Service. Each of its ports has pods behind it at the port of the same position
// from podPort on.
func (c *cluster) create(name string, spec v1.ServiceSpec, pods ...pod) {
	c.t.Helper()
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	must(c, func() (*v1.Service, error) {
		return c.client.CoreV1().Services("default").Create(c.t.Context(), s, metav1.CreateOptions{})
	})
	c.setPods(name, pods...)
}

func (c *cluster) get(name string) *v1.Service {
	c.t.Helper()
	return must(c, func() (*v1.Service, error) {
		return c.client.CoreV1().Services("default").Get(c.t.Context(), name, metav1.GetOptions{})
	})
}

// change changes the specification of a Service.
func (c *cluster) change(name string, change func(*v1.ServiceSpec)) {
	c.t.Helper()
	s := c.get(name)
	change(&s.Spec)
	must(c, func() (*v1.Service, error) {
		return c.client.CoreV1().Services("default").Update(c.t.Context(), s, metav1.UpdateOptions{})
	})
}

// assign sets the addresses of a load balancer, as a cloud provider does.
func (c *cluster) assign(name string, addresses ...string) {
	c.t.Helper()
	s := c.get(name)
	s.Status.LoadBalancer.Ingress = nil
	for _, a := range addresses {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: a})
	}
	must(c, func() (*v1.Service, error) {
		return c.client.CoreV1().Services("default").UpdateStatus(c.t.Context(), s, metav1.UpdateOptions{})
	})
}

// delete deletes a Service with its slices.
func (c *cluster) delete(name string) {
	c.t.Helper()
	testenv.NoError(c.t, c.client.CoreV1().Services("default").Delete(c.t.Context(), name, metav1.DeleteOptions{}))
	err := c.client.DiscoveryV1().EndpointSlices("default").DeleteCollection(c.t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
	testenv.NoError(c.t, err)
}

// pod is an endpoint of a Service.
type pod struct {
	number int
	remote bool // on another node
	failed bool // not ready
	ending bool // terminating; unless it has failed, it still serves
}

// here and there are pods of this node and of another one.
func here(number int) pod  { return pod{number: number} }
func there(number int) pod { return pod{number: number, remote: true} }

// setPods sets the pods of a Service, in a slice of each family.
func (c *cluster) setPods(name string, pods ...pod) {
	c.t.Helper()
	s := c.get(name)
	all := c.client.DiscoveryV1().EndpointSlices("default")
	for _, family := range s.Spec.IPFamilies {
		slice := sliceOf(s, family, pods)
		current, err := all.Get(c.t.Context(), slice.Name, metav1.GetOptions{})
		must(c, func() (*discoveryv1.EndpointSlice, error) {
			if err != nil {
				return all.Create(c.t.Context(), slice, metav1.CreateOptions{})
			}
			slice.ResourceVersion = current.ResourceVersion
			return all.Update(c.t.Context(), slice, metav1.UpdateOptions{})
		})
	}
}

func sliceOf(s *v1.Service, family v1.IPFamily, pods []pod) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: s.Name + "-" + string(family[2:]), Labels: map[string]string{discoveryv1.LabelServiceName: s.Name}},
		AddressType: discoveryv1.AddressType(family),
	}
	for i, p := range s.Spec.Ports {
		port := int32(podPort + i)
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &port, Protocol: &p.Protocol})
	}
	for _, p := range pods {
		node := nodeName
		if p.remote {
			node = "node-2"
		}
		ready, serving := !p.failed && !p.ending, !p.failed
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{podIP(p, family)}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &p.ending},
		})
	}
	return slice
}

// expected returns what the backend puts into an HNS that is new, for the objects of the API server.
func (c *cluster) expected() string {
	c.t.Helper()
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{
		NodeName: nodeName, NodePortAddresses: proxy.NodePortAddresses{All: true},
		Annotations: []string{kernelspace.PreserveDestinationAnnotation, kernelspace.OptimizationAnnotation},
	})
	ctx, every := c.t.Context(), metav1.ListOptions{}
	tracker.UpdateNode(must(c, func() (*v1.Node, error) {
		return c.client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	}))
	services := must(c, func() (*v1.ServiceList, error) { return c.client.CoreV1().Services("").List(ctx, every) })
	for i := range services.Items {
		tracker.UpdateService(&services.Items[i])
	}
	all := must(c, func() (*discoveryv1.EndpointSliceList, error) {
		return c.client.DiscoveryV1().EndpointSlices("").List(ctx, every)
	})
	for i := range all.Items {
		tracker.UpdateEndpointSlice(&all.Items[i])
	}
	tracker.Synced()
	snapshot := must(c, func() (proxy.Snapshot, error) { return tracker.Next(ctx, proxy.Snapshot{}) })
	for p := range snapshot.Problems() {
		c.t.Errorf("problem of an object: %v", p)
	}
	sim := newHNS(c.t)
	backend := must(c, func() (proxy.Backend, error) {
		return kernelspace.New(sim, kernelspace.Options{Network: networkName})
	})
	testenv.NoError(c.t, backend.Apply(ctx, proxy.Snapshot{}, snapshot))
	return sim.Dump()
}
