package e2e_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// testRollingUpdate replaces all pods, one after the other, under load. A terminating pod
// continues to serve for a while, so that the agents learn of its end first.
func testRollingUpdate(t *testing.T, c *cluster) {
	s, err := c.client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	testenv.NoError(t, err)
	c.awaitApplied(t) // A pod that was removed earlier without draining may still be an endpoint on some node.
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
			t.Logf("%s has replaced %s", fresh.name, old.name)
			since := time.Now()
			for _, s := range datagrams {
				eventually(t, fmt.Sprintf("%v reaches a pod that exists", s), func() error {
					if server, ok := s.served(since); !ok || c.pods[server] == nil {
						return fmt.Errorf("got replies: %v, the last of %q", ok, server)
					}
					return nil
				})
			}
		}
	}
	l.wantNoFailures(t, 500)
}

// testLoadBalancerUpdate replaces the only pod of a Service with external traffic policy Local.
// While only the old pod is left and drains, the health check node port reports that the node
// has no endpoints, but connections must still succeed.
func testLoadBalancerUpdate(t *testing.T, c *cluster) {
	s, err := c.client.CoreV1().Services("default").Get(t.Context(), "shop", metav1.GetOptions{})
	testenv.NoError(t, err)
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
	c.terminatePod(first)
	reports(1, http.StatusOK)
	c.stopPod(first, time.Second)
	c.terminatePod(second)
	reports(0, http.StatusServiceUnavailable)
	time.Sleep(time.Second) // The load continues meanwhile.
	c.startPod("shop", n)
	reports(1, http.StatusOK)
	c.stopPod(second, time.Second)
	l.wantNoFailures(t, 100)
}

// testModes restarts all agents in the other mode, under load. Nothing of the old mode must
// remain.
func testModes(t *testing.T, c *cluster) {
	s, err := c.client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	testenv.NoError(t, err)
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
		eventually(t, n.name+" has no rules of its old mode", func() error {
			if left := n.tables(nft); strings.Contains(left, gone) {
				return fmt.Errorf("got %q", gone)
			}
			return nil
		})
		for _, to := range clusterIPs(s) {
			reaches(t, n.ns, "tcp", to, c.webPods(c.nodes...)...)
			reaches(t, n.ns, "udp", to, c.webPods(c.nodes...)...)
		}
	}
	l.wantNoFailures(t, 20)
}
