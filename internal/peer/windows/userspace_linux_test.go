package windows_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/peer/controlplane"
	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const (
	cable = "clients" // the interface that gets addresses of Services
	// [agenttest.Node] has the pods 11 of this node and of the other one.
	servingPod = 11
)

// userspaceNode is a node with Windows, with a client, and with servers in pods that answer with the
// addresses of the pods.
type userspaceNode struct {
	*agenttest.Node
	t      *testing.T
	system *system
	path   string // of the program
}

// TestUserspaceAgent has the agent serve real connections in mode userspace, for the objects of an API
// server, also at a high rate while endpoints change. Objects change, the agent is killed, and then it
// removes all.
func TestUserspaceAgent(t *testing.T) {
	needWine(t)
	c := newCluster(t)
	n := &userspaceNode{Node: agenttest.NewNode(t, podPort, podPort+1), t: t, path: buildAgent(t)}
	n.system = startSystem(t, n.NS)
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
	n.connectOften(c, vip+":80")
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

	agent.Kill()
	n.wantAddresses(true, vip)
	agent = n.system.start(n.path, flags...)
	n.awaitAnswers(vip+":80", agenttest.Pod2IP)
	agent.Kill()
	if err := n.system.start(n.path, append(flags, "-cleanup")...).Wait(); err != nil {
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

// until waits until a condition holds, whose error says what is missing.
func (n *userspaceNode) until(condition func() error) {
	n.t.Helper()
	testenv.Eventually(n.t, patience, "the condition holds", condition)
}

// answers returns who answers connections to an address, and how often.
func (n *userspaceNode) answers(address string, times int) (map[string]int, error) {
	all := map[string]int{}
	for range times {
		answer, err := n.Ask(n.t.Context(), address)
		if err != nil {
			return nil, err
		}
		all[answer.Own.Addr().String()]++
	}
	return all, nil
}

// wantAddresses waits until the interface has all of some addresses, or none of them.
func (n *userspaceNode) wantAddresses(want bool, addresses ...string) {
	n.t.Helper()
	n.until(func() error {
		for _, a := range addresses {
			if got, err := hasAddress(n.NS, cable, a); err != nil || got != want {
				return fmt.Errorf("the interface has %s: got %v, error %w, want %v", a, got, err, want)
			}
		}
		return nil
	})
}

// Of the load: how many connections a second, for how long, how many at a time at most, and how many
// also a busy machine makes.
const (
	rate     = 500
	loadTime = 10 * time.Second
	atATime  = 64
	least    = 200
)

// connectOften makes new connections while the endpoints of the Service web change. None must fail. A machine
// that is too slow for the rate makes fewer of them.
func (n *userspaceNode) connectOften(c *cluster, address string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	var answers map[string]int
	var failures []error
	loaded, began := make(chan struct{}), time.Now()
	go func() {
		defer close(loaded)
		answers, failures = n.load(ctx, address)
	}()
	again := time.NewTicker(700 * time.Millisecond)
	defer again.Stop()
	sets := [][]pod{{here(servingPod)}, {there(servingPod)}, {here(servingPod), there(servingPod)}}
	changes := 0
	for done := false; !done; {
		select {
		case <-loaded:
			done = true
		case <-again.C:
			c.setPods("web", sets[changes%len(sets)]...)
			changes++
		}
	}
	took, total := time.Since(began), 0
	for _, count := range answers {
		total += count
	}
	n.t.Logf("%d connections in %v, %.0f a second, with %d changes; answers %v", total, took.Round(time.Millisecond), float64(total)/took.Seconds(), changes, answers)
	if len(failures) > 0 || total < least || len(answers) != 2 || changes < 3 {
		n.t.Errorf("got %d connections to %d servers during %d changes, want at least %d to 2 during 3; %d failures: %v",
			total, len(answers), changes, least, len(failures), errors.Join(failures[:min(len(failures), 5)]...))
	}
}

// load makes connections to an address at the rate. It returns the numbers of answers.
func (n *userspaceNode) load(ctx context.Context, address string) (answers map[string]int, failures []error) {
	answers = map[string]int{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	due := make(chan struct{})
	for range atATime {
		asking.Go(func() {
			for range due {
				answer, err := n.Ask(ctx, address)
				mu.Lock()
				if err != nil {
					failures = append(failures, err)
				} else {
					answers[answer.Own.Addr().String()]++
				}
				mu.Unlock()
			}
		})
	}
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	began := time.Now()
	for made := 0.0; time.Since(began) < loadTime; <-again.C {
		for ; time.Since(began) < loadTime && made < time.Since(began).Seconds()*rate; made++ {
			due <- struct{}{}
		}
	}
	close(due)
	asking.Wait()
	return answers, failures
}
