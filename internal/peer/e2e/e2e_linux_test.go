package e2e_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestCluster tests Services, updates and load, and then crashes of the API server and of
// agents, all in one cluster.
func TestCluster(t *testing.T) {
	c := newCluster(t, "nftables", "nftables", "iptables")
	c.runControllers()
	for _, part := range []struct {
		name string
		test func(t *testing.T, c *cluster)
	}{
		{"kube-proxy is replaced", testReplace},
		{"ClusterIP and NodePort", testTraffic},
		{"load balancer", testLoadBalancer},
		{"rolling update", testRollingUpdate},
		{"rolling update of a load balancer's only pod", testLoadBalancerUpdate},
		{"API server crashes", testAPIServerCrash},
		{"agents are killed", testAgentsKilled},
		{"all nodes change their mode", testModes},
		{"cleanup", testCleanup},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.test(t, c) }) {
			for _, n := range c.nodes {
				t.Logf("log of the agent of %s:\n%s", n.name, n.logTail())
			}
			return // Later parts depend on earlier ones.
		}
	}
}

// testTraffic connects to a Service from nodes, pods and outside, by ClusterIP and node port.
func testTraffic(t *testing.T, c *cluster) {
	c.startAgents()
	s := c.makeService("web", v1.ServiceSpec{Type: v1.ServiceTypeNodePort})
	var pods []*pod
	for _, n := range c.nodes {
		pods = append(pods, c.startPod("web", n))
	}
	for _, p := range pods { // Check the network without Services first.
		for _, a := range p.addresses {
			reaches(t, c.nodes[0].ns, "tcp", netip.AddrPortFrom(a.Addr(), podPort), p)
		}
	}
	for i, n := range c.nodes {
		for _, to := range clusterIPs(s) {
			for _, network := range []string{"tcp", "udp"} {
				reaches(t, n.ns, network, to, pods...)
				reaches(t, pods[i].ns, network, to, pods...)
			}
		}
		for j, network := range []string{"tcp", "udp"} {
			for _, a := range n.addresses {
				reaches(t, c.network.outside, network, netip.AddrPortFrom(a.Addr(), uint16(s.Spec.Ports[j].NodePort)), pods...)
			}
		}
	}
}

// testLoadBalancer has a Service with external traffic policy Local: its pods see the client's
// address, and only nodes with a pod serve it.
func testLoadBalancer(t *testing.T, c *cluster) {
	s := c.makeService("shop", v1.ServiceSpec{
		Type: v1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: v1.ServiceExternalTrafficPolicyLocal,
	})
	p := c.startPod("shop", c.nodes[0])
	outside := parsePair("192.0.2.10/32", "2001:db8::10/128")
	vips := parsePair("203.0.113.7/32", "2001:db8:1b::7/128")
	c.giveVIPs(s, vips)
	c.network.addRoute(vips, p.node)
	// A connection attempt before the node serves leaves a conntrack entry, with which the next
	// attempt from the same address and port fails, too. So the first attempts are from a host
	// that makes no connections later.
	early := c.network.attach(parsePair("192.0.2.11/32", "2001:db8::11/128"))
	for i, vip := range vips {
		to := netip.AddrPortFrom(vip.Addr(), 80)
		reaches(t, early, "tcp", to, p)
		reaches(t, c.network.outside, "tcp", to, p)
		a, err := ask(t.Context(), c.network.outside, "tcp", to)
		if err != nil || a.Client.Addr() != outside[i].Addr() {
			t.Errorf("client's address at the pod through %v: got %v, error %v, want %v", to, a.Client.Addr(), err, outside[i].Addr())
		}
		// The policy does not apply to traffic from inside.
		reaches(t, c.nodes[1].ns, "tcp", to, p)
	}
	for i, n := range c.nodes {
		url := fmt.Sprintf("http://%v:%d/", n.addresses[0].Addr(), s.Spec.HealthCheckNodePort)
		want := http.StatusServiceUnavailable
		if i == 0 {
			want = http.StatusOK
		}
		eventually(t, fmt.Sprintf("%s returns %d", url, want), func() error { return answers(c.network.outside, url, want) })
	}
}

// get makes an HTTP request on a connection of its own.
func get(from *netns.NS, url string) (status int, body string, err error) {
	client := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DialContext: from.Dial, DisableKeepAlives: true}}
	response, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(response.Body)
	_ = response.Body.Close() // It was read to the end.
	return response.StatusCode, string(text), err
}

func answers(from *netns.NS, url string, want int) error {
	status, body, err := get(from, url)
	if err == nil && status != want {
		err = fmt.Errorf("got status %d: %s", status, body)
	}
	return err
}

// webPods lists the pods of the Service web on some nodes.
func (c *cluster) webPods(nodes ...*node) []*pod { return c.appPods("web", nodes...) }

func (c *cluster) appPods(app string, nodes ...*node) []*pod {
	var all []*pod
	for _, p := range c.pods {
		if p.app == app && slices.Contains(nodes, p.node) {
			all = append(all, p)
		}
	}
	return all
}

// testAPIServerCrash kills the API server and starts it again, under load. Afterwards agents hear of a
// new pod and a new ServiceCIDR.
func testAPIServerCrash(t *testing.T, c *cluster) {
	s, err := c.client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	testenv.NoError(t, err)
	c.awaitApplied(t)
	l := startLoad(t, c.nodes[1].ns, 200, clusterIPs(s)...)
	before := generations(t, c)
	c.cp.Kill()
	time.Sleep(3 * time.Second) // Long enough for agents to retry their watches.
	if after := generations(t, c); after != before {
		t.Errorf("generations of the rules while the API server was down: got %[2]v, want %[1]v", before, after)
	}
	c.cp.Restart()
	more := c.startPod("web", c.nodes[2])
	for _, n := range c.nodes {
		for _, to := range clusterIPs(s) {
			reaches(t, n.ns, "tcp", to, c.webPods(c.nodes...)...)
			reaches(t, n.ns, "udp", to, c.webPods(c.nodes...)...)
		}
	}
	t.Logf("%s is serving", more.name)
	const added = "10.112.0.0/16"
	_, err = c.client.NetworkingV1().ServiceCIDRs().Create(t.Context(), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "added"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{added}},
	}, metav1.CreateOptions{})
	testenv.NoError(t, err)
	for _, n := range c.nodes {
		eventually(t, n.name+" has rules for "+added, func() error {
			if text := n.tables(netnstest.NFT(t)); !strings.Contains(text, added) {
				return errors.New("got none")
			}
			return nil
		})
	}
	l.wantNoFailures(t, 500)
}

// generations returns the numbers of the nodes' rulesets: any commit changes them.
func generations(t *testing.T, c *cluster) (all [3]uint32) {
	t.Helper()
	for i, n := range c.nodes {
		all[i] = generation(t, n)
	}
	return all
}

// nodePorts returns the addresses of all nodes with the TCP node port of a Service.
func (c *cluster) nodePorts(s *v1.Service) []netip.AddrPort {
	var all []netip.AddrPort
	for _, n := range c.nodes {
		for _, a := range n.addresses {
			all = append(all, netip.AddrPortFrom(a.Addr(), uint16(s.Spec.Ports[0].NodePort)))
		}
	}
	return all
}

// testAgentsKilled kills agents under load. The next agent must adopt the rules and write
// nothing.
func testAgentsKilled(t *testing.T, c *cluster) {
	s, err := c.client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	testenv.NoError(t, err)
	c.awaitApplied(t)
	l := startLoad(t, c.network.outside, 200, c.nodePorts(s)...)
	before := generations(t, c)
	for i := range 20 {
		n := c.nodes[i%len(c.nodes)]
		n.stopAgent(os.Kill)
		n.startAgent(c.program)
		n.awaitSync()
	}
	if after := generations(t, c); after != before {
		t.Errorf("generations of the rules after restarts of agents: got %[2]v, want %[1]v", before, after)
	}
	l.wantNoFailures(t, 300)
}

// testCleanup stops the agents, and checks that the rules stay until -cleanup removes them.
func testCleanup(t *testing.T, c *cluster) {
	s, err := c.client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	testenv.NoError(t, err)
	nft := netnstest.NFT(t)
	for _, n := range c.nodes {
		n.stopAgent(syscall.SIGTERM)
		reaches(t, n.ns, "tcp", clusterIPs(s)[0], c.webPods(c.nodes...)...)
		n.run(c.program, "-cleanup")
		n.wantNoRules(t, nft)
	}
}

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == containerCommand {
		fmt.Fprintln(os.Stderr, becomeContainer(os.Args[2]))
		os.Exit(1)
	}
	os.Exit(netnstest.Main(m, testenv.Processes))
}
