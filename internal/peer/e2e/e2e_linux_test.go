package e2e_test

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
)

// TestCluster uses a cluster as people do, and then as fate does.
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
		{"session affinity", testAffinity},
		{"rolling update", testRollingUpdate},
		{"rolling update of a load balancer's only pod", testLoadBalancerUpdate},
		{"flows", testFlows},
		{"SCTP", testSCTP},
		{"API server dies", testAPIServerDies},
		{"agents die", testAgentsDie},
		{"all nodes change their mode", testModes},
		{"cleanup", testCleanup},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.test(t, c) }) {
			for _, n := range c.nodes {
				t.Logf("the agent of %s says:\n%s", n.name, n.said())
			}
			return // What follows needs what was before.
		}
	}
}

// testTraffic reaches a Service from everywhere, in all ways.
func testTraffic(t *testing.T, c *cluster) {
	c.startAgents()
	s := c.makeService("web", v1.ServiceSpec{Type: v1.ServiceTypeNodePort})
	var pods []*pod
	for _, n := range c.nodes {
		pods = append(pods, c.startPod("web", n))
	}
	for _, p := range pods { // What follows means something only if this works.
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

// testLoadBalancer has a Service that keeps the client's address, and so is only served by
// nodes that have a pod of it.
func testLoadBalancer(t *testing.T, c *cluster) {
	s := c.makeService("shop", v1.ServiceSpec{
		Type: v1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: v1.ServiceExternalTrafficPolicyLocal,
	})
	p := c.startPod("shop", c.nodes[0])
	outside := parsePair("192.0.2.10/32", "2001:db8::10/128")
	vips := parsePair("203.0.113.7/32", "2001:db8:1b::7/128")
	c.giveVIPs(s, vips)
	c.network.lead(vips, p.node)
	// An attempt to connect that comes before the node serves leaves an entry in its connection
	// tracking, with which the next one from the same address and port would fail as well. So who
	// is to connect without failure later is not who tries first.
	early := c.network.attach(parsePair("192.0.2.11/32", "2001:db8::11/128"))
	for i, vip := range vips {
		to := netip.AddrPortFrom(vip.Addr(), 80)
		reaches(t, early, "tcp", to, p)
		reaches(t, c.network.outside, "tcp", to, p)
		a, err := ask(t.Context(), c.network.outside, "tcp", to)
		if err != nil || a.sees != outside[i].Addr() {
			t.Errorf("through %v the pod sees %v (error %v), want the client's own address %v", to, a.sees, err, outside[i].Addr())
		}
		// Inside, the policy makes no difference.
		reaches(t, c.nodes[1].ns, "tcp", to, p)
	}
	for i, n := range c.nodes {
		url := fmt.Sprintf("http://%v:%d/", n.addresses[0].Addr(), s.Spec.HealthCheckNodePort)
		want := http.StatusServiceUnavailable
		if i == 0 {
			want = http.StatusOK
		}
		eventually(t, fmt.Sprintf("%s answers %d", url, want), func() error { return answers(c.network.outside, url, want) })
	}
}

// get is an HTTP request on a connection of its own.
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

// testAPIServerDies takes the API server away and brings it back, under load.
func testAPIServerDies(t *testing.T, c *cluster) {
	s, err := c.client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.settle(t)
	l := startLoad(t, c.nodes[1].ns, 200, clusterIPs(s)...)
	before := generations(t, c)
	c.cp.Kill()
	time.Sleep(3 * time.Second) // Long enough for watches to be tried in vain.
	if after := generations(t, c); after != before {
		t.Errorf("while the API server was away, the rules went from generations %v to %v", before, after)
	}
	c.cp.Restart()
	more := c.startPod("web", c.nodes[2])
	for _, n := range c.nodes {
		for _, to := range clusterIPs(s) {
			reaches(t, n.ns, "tcp", to, c.webPods(c.nodes...)...)
			reaches(t, n.ns, "udp", to, c.webPods(c.nodes...)...)
		}
	}
	t.Logf("%s serves", more.name)
	l.flawless(t, 500)
}

// generations gives the numbers of the nodes' rulesets: any commit changes them.
func generations(t *testing.T, c *cluster) (all [3]uint32) {
	t.Helper()
	for i, n := range c.nodes {
		all[i] = generation(t, n)
	}
	return all
}

// nodePorts are where the TCP port of a Service answers on all nodes.
func (c *cluster) nodePorts(s *v1.Service) []netip.AddrPort {
	var all []netip.AddrPort
	for _, n := range c.nodes {
		for _, a := range n.addresses {
			all = append(all, netip.AddrPortFrom(a.Addr(), uint16(s.Spec.Ports[0].NodePort)))
		}
	}
	return all
}

// testAgentsDie kills agents in the midst of traffic. Each next one finds the kernel as it
// should be, and writes nothing.
func testAgentsDie(t *testing.T, c *cluster) {
	s, err := c.client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.settle(t)
	l := startLoad(t, c.network.outside, 200, c.nodePorts(s)...)
	before := generations(t, c)
	for i := range 20 {
		n := c.nodes[i%len(c.nodes)]
		n.stopAgent(os.Kill)
		n.startAgent(c.program)
		n.awaitSync()
	}
	if after := generations(t, c); after != before {
		t.Errorf("restarts of agents took the rules from generations %v to %v, want no commit", before, after)
	}
	l.flawless(t, 300)
}

// testCleanup ends the agents: rules stay until they are removed.
func testCleanup(t *testing.T, c *cluster) {
	s, err := c.client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	nft := netnstest.NFT(t)
	for _, n := range c.nodes {
		n.stopAgent(syscall.SIGTERM)
		reaches(t, n.ns, "tcp", clusterIPs(s)[0], c.webPods(c.nodes...)...)
		n.run(c.program, "-cleanup")
		n.wantNoRules(t, nft)
	}
}
