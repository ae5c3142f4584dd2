package e2e_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
)

// testRollingUpdate replaces all pods, one after the other, under load. A pod that was told
// to end goes on serving for a while, as pods do that let their node's agent know first.
func testRollingUpdate(t *testing.T, c *cluster) {
	s, err := c.client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client := c.appPods("shop", c.nodes[0])[0]
	l := startLoad(t, client.ns, 200, clusterIPs(s)...)
	var datagrams []*sender
	for i, to := range clusterIPs(s) {
		datagrams = append(datagrams, startSender(t, client.ns, netip.AddrPortFrom(client.addresses[i].Addr(), 20000), to))
	}
	for _, n := range c.nodes {
		for _, old := range c.webPods(n) {
			fresh := c.startPod("web", n)
			reaches(t, c.network.outside, "tcp",
				netip.AddrPortFrom(n.addresses[0].Addr(), uint16(s.Spec.Ports[0].NodePort)), c.webPods(c.nodes...)...)
			c.stopPod(old, 2*time.Second)
			t.Logf("%s has taken the place of %s", fresh.name, old.name)
			since := time.Now()
			for _, s := range datagrams {
				eventually(t, fmt.Sprintf("%v leads to a pod that is there", s), func() error {
					if server, ok := s.served(since); !ok || c.pods[server] == nil {
						return fmt.Errorf("answers: %v, at last by %q", ok, server)
					}
					return nil
				})
			}
		}
	}
	l.flawless(t, 500)
}

// testLoadBalancerUpdate replaces the only pod of a Service that keeps the client's address.
// While the old one only drains, load balancers are told to go elsewhere, and who comes
// nevertheless is served.
func testLoadBalancerUpdate(t *testing.T, c *cluster) {
	s, err := c.client.CoreV1().Services("default").Get(t.Context(), "shop", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := c.nodes[0]
	first := c.appPods("shop", n)[0]
	reports := func(endpoints, status int) {
		t.Helper()
		url := fmt.Sprintf("http://%v/", netip.AddrPortFrom(n.addresses[1].Addr(), uint16(s.Spec.HealthCheckNodePort)))
		eventually(t, fmt.Sprintf("%s has %d endpoints, by %s", n.name, endpoints, url), func() error {
			got, body, err := get(c.network.outside, url)
			if err == nil && (got != status || !strings.Contains(body, fmt.Sprintf(`"localEndpoints": %d,`, endpoints))) {
				err = fmt.Errorf("got status %d: %s", got, body)
			}
			return err
		})
	}
	var vips []netip.AddrPort
	for _, x := range s.Status.LoadBalancer.Ingress {
		vips = append(vips, netip.AddrPortFrom(netip.MustParseAddr(x.IP), 80))
	}
	l := startLoad(t, c.network.outside, 100, vips...)
	reports(1, http.StatusOK)
	second := c.startPod("shop", n)
	reports(2, http.StatusOK)
	c.tellToEnd(first)
	reports(1, http.StatusOK)
	c.stopPod(first, time.Second)
	c.tellToEnd(second)
	reports(0, http.StatusServiceUnavailable)
	time.Sleep(time.Second) // Connections come in the meantime.
	c.startPod("shop", n)
	reports(1, http.StatusOK)
	c.stopPod(second, time.Second)
	l.flawless(t, 100)
}

// testAffinity has clients come back to the pod that they had, as long as there is one.
func testAffinity(t *testing.T, c *cluster) {
	s := c.makeService("sticky", v1.ServiceSpec{
		Type: v1.ServiceTypeNodePort, Selector: map[string]string{"app": "web"}, SessionAffinity: v1.ServiceAffinityClientIP,
	})
	sticksTo := func(from *netns.NS, network string, to netip.AddrPort) (name string) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s %v sticks to a pod", network, to), func() error {
			name = ""
			for range 20 {
				a, err := ask(t.Context(), from, network, to)
				if err != nil {
					return err
				}
				if name != "" && a.pod != name {
					return fmt.Errorf("%s answered after %s", a.pod, name)
				}
				name = a.pod
			}
			return nil
		})
		return name
	}
	for _, n := range c.nodes {
		for _, network := range []string{"tcp", "udp"} {
			for _, to := range clusterIPs(s) {
				sticksTo(n.ns, network, to)
			}
		}
		for _, a := range n.addresses {
			to := netip.AddrPortFrom(a.Addr(), uint16(s.Spec.Ports[0].NodePort))
			old := sticksTo(c.network.outside, "tcp", to)
			c.startPod("web", c.pods[old].node)
			c.stopPod(c.pods[old], 0)
			if now := sticksTo(c.network.outside, "tcp", to); now == old {
				t.Errorf("%v still leads to %s, which is gone", to, old)
			}
		}
	}
}

// testModes restarts all agents in the other mode, under load. It does not leave
// anything of the old one.
func testModes(t *testing.T, c *cluster) {
	s, err := c.client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	nft := netnstest.NFT(t)
	l := startLoad(t, c.network.outside, 100, c.nodePorts(s)...)
	for _, n := range c.nodes {
		other, gone := "nftables", "KUBE-SERVICES"
		if n.mode == other {
			other, gone = "iptables", "table ip vipkit"
		}
		n.stopAgent(syscall.SIGTERM)
		n.setMode(other)
		n.startAgent(c.program)
		eventually(t, n.name+" has nothing of its old mode", func() error {
			if left := n.tables(nft); strings.Contains(left, gone) {
				return fmt.Errorf("there is %q", gone)
			}
			return nil
		})
		for _, to := range clusterIPs(s) {
			reaches(t, n.ns, "tcp", to, c.webPods(c.nodes...)...)
			reaches(t, n.ns, "udp", to, c.webPods(c.nodes...)...)
		}
	}
	l.flawless(t, 20)
}
