package e2e_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controller/endpointslice"

	"github.com/vipkit/vipkit/internal/peer/controlplane"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// cluster is the whole cluster: control plane, network, nodes and pods.
type cluster struct {
	t       *testing.T
	cp      *controlplane.ControlPlane
	client  kubernetes.Interface
	network *network
	nodes   []*node
	pods    map[string]*pod
	program string // the agent
	token   string // of the agent
	markers int    // Services made by awaitApplied
}

// newCluster makes a cluster with a node for each mode of the agent.
func newCluster(t *testing.T, modes ...string) *cluster {
	t.Helper()
	c := &cluster{
		t: t, network: newNetwork(t), pods: map[string]*pod{}, program: controlplane.Build(t, "../../../examples/kubeproxy", "github.com/vipkit/vipkit/examples/kubeproxy"),
		cp: controlplane.Start(t, controlplane.Options{Flags: []string{"--allow-privileged"}}),
	}
	var err error
	if c.client, err = kubernetes.NewForConfig(c.cp.Config()); err != nil {
		t.Fatal(err)
	}
	c.token = c.deploy()
	for _, mode := range modes {
		c.addNode(mode)
	}
	return c
}

// startAgents starts the agents of all nodes.
func (c *cluster) startAgents() {
	c.t.Helper()
	for _, n := range c.nodes {
		n.startAgent(c.program)
	}
}

// runControllers runs the controller that makes the EndpointSlices of Services.
func (c *cluster) runControllers() {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	all := informers.NewSharedInformerFactory(c.client, 0)
	slices := endpointslice.NewController(ctx, all.Core().V1().Pods(), all.Core().V1().Services(),
		all.Core().V1().Nodes(), all.Discovery().V1().EndpointSlices(), 100, c.client, 0)
	all.Start(ctx.Done())
	var running sync.WaitGroup
	running.Go(func() { slices.Run(ctx, 2) })
	c.t.Cleanup(func() {
		cancel()
		running.Wait()
		all.Shutdown()
	})
}

// number is the number of the node, from one.
func (n *node) number() int { return int(n.name[len(n.name)-1] - '0') }

func (c *cluster) addNode(mode string) {
	c.t.Helper()
	i := len(c.nodes) + 1
	n := &node{
		t: c.t, name: fmt.Sprintf("node-%d", i), mode: mode, cable: fmt.Sprintf("host%d", i),
		addresses: parsePair("172.18.0.%d/32", "fd00:18::%d/128", i),
		podRange:  parsePair("10.244.%d.0/24", "fd00:244:0:%d::/64", i),
	}
	n.ns = c.network.attach(n.addresses)
	c.network.must(n.ns.Forward())
	c.network.addRoute(n.podRange, n)
	host := strings.TrimPrefix(c.cp.Config().Host, "https://")
	n.relay(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", host)
	})
	n.configure(c.token)
	c.register(n)
	c.nodes = append(c.nodes, n)
}

// register creates the Node object with the status that a kubelet reports.
func (c *cluster) register(n *node) {
	c.t.Helper()
	nodes := c.client.CoreV1().Nodes()
	object, err := nodes.Create(c.t.Context(), &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{v1.LabelTopologyZone: "zone-" + n.name}},
		Spec:       v1.NodeSpec{PodCIDR: n.podRange[0].String(), PodCIDRs: []string{n.podRange[0].String(), n.podRange[1].String()}},
	}, metav1.CreateOptions{})
	testenv.NoError(c.t, err)
	for _, a := range n.addresses {
		object.Status.Addresses = append(object.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a.Addr().String()})
	}
	object.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
	if _, err := nodes.UpdateStatus(c.t.Context(), object, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// makeService creates a dual-stack Service with a TCP and a UDP port. Without a selector it
// selects the pods of the app with its name.
func (c *cluster) makeService(name string, spec v1.ServiceSpec) *v1.Service {
	c.t.Helper()
	both := v1.IPFamilyPolicyRequireDualStack
	spec.IPFamilyPolicy = &both
	if spec.Selector == nil {
		spec.Selector = map[string]string{"app": name}
	}
	spec.Ports = []v1.ServicePort{
		{Name: "tcp", Protocol: v1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(podPort)},
		{Name: "udp", Protocol: v1.ProtocolUDP, Port: 80, TargetPort: intstr.FromInt32(podPort)},
	}
	s, err := c.client.CoreV1().Services("default").Create(c.t.Context(), &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec,
	}, metav1.CreateOptions{})
	testenv.NoError(c.t, err)
	return s
}

// giveVIPs sets the load balancer addresses of a Service, as a cloud provider does.
func (c *cluster) giveVIPs(s *v1.Service, vips pair) {
	c.t.Helper()
	for _, vip := range vips {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: vip.Addr().String()})
	}
	if _, err := c.client.CoreV1().Services("default").UpdateStatus(c.t.Context(), s, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// clusterIPs returns the ClusterIPs of a Service with its port.
func clusterIPs(s *v1.Service) []netip.AddrPort {
	var all []netip.AddrPort
	for _, ip := range s.Spec.ClusterIPs {
		all = append(all, netip.AddrPortFrom(netip.MustParseAddr(ip), 80))
	}
	return all
}

// eventually repeats a check until it passes.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	testenv.Eventually(t, 2*time.Minute, what, check)
}
