package windows_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/peer/controlplane"
	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Pods 11 of this node and of the other one are those of [agenttest.Node].
const servingPod = 11

// TestUserspaceAgent has the agent serve real connections in mode userspace, for the objects of an API
// server. Objects change, the agent is killed, and then it removes all.
func TestUserspaceAgent(t *testing.T) {
	needWine(t)
	c := newCluster(t)
	n := &userspaceNode{Node: agenttest.NewNode(t, podPort, podPort+1), t: t, path: buildExample(t, "kubeproxy")}
	n.system = startSystem(t, n.Do)
	n.system.serveNetsh(n.NS)
	flags := []string{
		"-kubeconfig", n.relay(c), "-hostname-override", nodeName, "-proxy-mode", "userspace", "-interface", cable, "-netsh", "-v=1",
	}
	agent := n.system.start(n.path, flags...)

	s := ports(tcp("http", 80), tcp("admin", 8080))
	s.Type = v1.ServiceTypeNodePort
	c.create("web", s, here(servingPod), there(servingPod))
	web := c.get("web")
	vip, nodePort := web.Spec.ClusterIP, fmt.Sprintf("%s:%d", agenttest.NodeIP, web.Spec.Ports[0].NodePort)
	for _, address := range []string{vip + ":80", vip + ":8080", nodePort} {
		n.awaitAnswers(address, agenttest.Pod1IP, agenttest.Pod2IP)
	}
	c.setPods("web", there(servingPod))
	n.awaitAnswers(vip+":80", agenttest.Pod2IP)
	c.change("web", func(s *v1.ServiceSpec) { s.Ports = s.Ports[:1] })
	n.until(func() error {
		if answer, err := n.Ask(t.Context(), vip+":8080"); err == nil {
			return fmt.Errorf("a port that was removed: got answer %+v, want an error", answer)
		}
		return nil
	})
	n.awaitAnswers(vip+":80", agenttest.Pod2IP) // its address stays
	c.create("other", ports(tcp("http", 80)), here(servingPod))
	other := c.get("other").Spec.ClusterIP
	n.awaitAnswers(other+":80", agenttest.Pod1IP)
	c.delete("other")
	n.wantAddresses(false, other)

	agent.kill()
	n.wantAddresses(true, vip)
	agent = n.system.start(n.path, flags...)
	n.awaitAnswers(vip+":80", agenttest.Pod2IP)
	agent.kill()
	if err := n.system.start(n.path, append(flags, "-cleanup")...).cmd.Wait(); err != nil {
		t.Errorf("-cleanup: %v", err)
	}
	n.wantAddresses(false, vip)
	n.wantAddresses(true, agenttest.NodeIP)
}

// awaitAnswers waits until exactly these servers answer connections to an address.
func (n *userspaceNode) awaitAnswers(address string, servers ...string) {
	n.t.Helper()
	n.until(func() error {
		got, err := n.answers(address, 10)
		for _, s := range servers {
			if err == nil && (got[s] == 0 || len(got) != len(servers)) {
				err = fmt.Errorf("answers from %s: got %v, want some of each of %q", address, got, servers)
			}
		}
		return err
	})
}

// relay has connections in the namespace of the node reach the API server, and returns the path of a
// kubeconfig for it.
func (n *userspaceNode) relay(c *cluster) string {
	n.t.Helper()
	l, err := n.Listen(n.t.Context(), "tcp", "127.0.0.1:0")
	testenv.NoError(n.t, err)
	config := c.kubeconfig("https://" + l.Addr().String())
	controlplane.Relay(n.t, l, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(c.host, "https://"))
	})
	return config
}
