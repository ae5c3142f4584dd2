package windows_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/servertest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// patience bounds each wait.
const patience = time.Minute

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, testenv.Processes)) }

// world is a cluster with the agent on a node with Windows.
type world struct {
	*cluster
	hns     *hcntest.Sim
	system  *system
	path    string // of the agent
	flags   []string
	healthz string // its address
	agent   *servertest.Process
}

func newWorld(t *testing.T) *world {
	t.Helper()
	needWine(t)
	w := &world{cluster: newCluster(t), hns: newHNS(t), path: buildAgent(t), healthz: servertest.FreeAddress(t)}
	ns, err := netns.Current()
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, ns)
	w.system = startSystem(t, ns)
	w.system.serveHNS(w.hns)
	w.flags = []string{
		"-kubeconfig", w.config, "-hostname-override", nodeName, "-network-name", networkName, "-v=1",
		"-healthz-bind-address", w.healthz, "-metrics-bind-address", servertest.FreeAddress(t),
	}
	return w
}

// start starts the agent.
func (w *world) start() { w.agent = w.system.start(w.path, w.flags...) }

// awaitPage waits until a page has all parts.
func (w *world) awaitPage(url string, parts ...string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	agenttest.AwaitPage(ctx, w.t, new(net.Dialer).DialContext, url, parts...)
}

// awaitSync waits until the agent has applied everything once.
func (w *world) awaitSync() {
	w.t.Helper()
	w.awaitPage("http://"+w.healthz+"/healthz", "200 OK", `"status":{`)
}

// awaitObjects waits until HNS has what the objects of the API server need, and nothing else. It
// returns that.
func (w *world) awaitObjects(when string) string {
	w.t.Helper()
	want := w.expected()
	w.await(when, want)
	return want
}

func (w *world) await(when, want string) {
	w.t.Helper()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(patience); ; <-again.C {
		got := w.hns.Dump()
		if got == want {
			break
		}
		if time.Now().After(end) {
			w.t.Fatalf("%s: HNS (-want +got):\n%s", when, cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")))
		}
	}
	for _, violation := range w.hns.Violations() {
		w.t.Fatalf("%s: violation: %s", when, violation)
	}
}

// writes reports whether a method of HNS changes something.
func writes(method string) bool {
	return strings.HasPrefix(method, "Create") || strings.HasPrefix(method, "Modify") || strings.HasPrefix(method, "Delete")
}

// written returns how often such methods were called.
func (w *world) written() (n int) {
	for method, times := range w.hns.Calls() {
		if writes(method) {
			n += times
		}
	}
	return n
}

// balancers returns the load balancers of an address, by what they are.
func (w *world) balancers(address string) map[string]string {
	all := map[string]string{}
	for _, b := range w.hns.LoadBalancers() {
		for _, vip := range b.FrontendVIPs {
			if vip.String() == address {
				all[fmt.Sprint(b.FrontendVIPs, b.PortMappings)] = b.ID
			}
		}
	}
	return all
}

// TestAgent changes objects of all kinds, kills the agent 20 times, and then has it remove all.
func TestAgent(t *testing.T) {
	w := newWorld(t)
	w.start()
	for _, wave := range waves() {
		before, began := w.written(), time.Now()
		wave.change(w.cluster)
		want := w.awaitObjects(wave.name)
		for _, part := range wave.want {
			if !strings.Contains(want, part) {
				t.Errorf("%s: the backend makes\n%s\nwant also %q", wave.name, want, part)
			}
		}
		t.Logf("%s: %d lines of HNS, %d calls that write, %v", wave.name, strings.Count(want, "\n")+1, w.written()-before, time.Since(began).Round(time.Millisecond))
	}
	w.awaitPage(fmt.Sprintf("http://127.0.0.1:%d", w.get("local").Spec.HealthCheckNodePort), "200 OK", `"localEndpoints": 1,`)
	w.killOften()
	w.cleanUp()
}

// killOften kills the agent and starts it again 20 times: nothing is lost, doubled or made again.
func (w *world) killOften() {
	w.t.Helper()
	address := w.get("web").Spec.ClusterIP
	stays := w.balancers(address)
	if len(stays) == 0 {
		w.t.Fatalf("HNS has no load balancer of %s", address)
	}
	began := time.Now()
	for round := range 20 {
		switch round % 4 {
		case 1:
			w.agent.Kill()
			w.churn(round)
		case 3:
			w.killAtWrite(1+round/4, func() { w.churn(round) })
		default:
			w.killUnchanged(round)
			continue
		}
		w.start()
		w.awaitObjects(fmt.Sprintf("kill %d", round))
	}
	w.awaitSync()
	if diff := cmp.Diff(stays, w.balancers(address)); diff != "" {
		w.t.Errorf("IDs of the load balancers of a Service that did not change (-before +after):\n%s", diff)
	}
	w.t.Logf("20 kills: %v", time.Since(began).Round(time.Millisecond))
}

// killUnchanged kills an agent that has nothing to do, and checks that the next one writes nothing.
func (w *world) killUnchanged(round int) {
	w.t.Helper()
	w.awaitSync()
	want, before := w.awaitObjects("before a kill"), w.written()
	w.agent.Kill()
	w.start()
	w.awaitSync()
	if got := w.written() - before; got != 0 {
		w.t.Errorf("kill %d: the next agent has made %d calls that write, want none", round, got)
	}
	w.await(fmt.Sprintf("kill %d", round), want)
}

// killAtWrite kills the agent at its call number n that writes, while objects change.
func (w *world) killAtWrite(n int, change func()) {
	w.t.Helper()
	reached := make(chan struct{})
	w.hns.SetFault(func(c hcntest.Call) (none hcntest.Fault) {
		if writes(c.Method) {
			if n--; n == 0 {
				close(reached)
			}
		}
		return none
	})
	killed := make(chan bool)
	go func() {
		defer close(killed)
		select {
		case <-reached:
			w.agent.Kill()
			killed <- true
		case <-time.After(patience):
		}
	}()
	change()
	if !<-killed {
		w.t.Fatal("the agent makes no such call")
	}
	w.hns.SetFault(nil)
}

// cleanUp removes everything, by another process.
func (w *world) cleanUp() {
	w.t.Helper()
	w.agent.Kill()
	state := filepath.Join(w.system.folder, "ProgramData", "vipkit", "vipkit.kernelspace")
	if _, err := os.Stat(state); err != nil {
		w.t.Errorf("the state file: %v", err)
	}
	if err := w.system.start(w.path, append(w.flags, "-cleanup")...).Wait(); err != nil {
		w.t.Errorf("-cleanup: %v", err)
	}
	w.await("after -cleanup", "")
	if _, err := os.Stat(state); !os.IsNotExist(err) {
		w.t.Errorf("the state file after -cleanup: got error %v, want %v", err, os.ErrNotExist)
	}
	for _, e := range w.hns.Endpoints() {
		if e.Remote {
			w.t.Errorf("endpoint after -cleanup: %+v", e)
		}
	}
}

// ports are the ports of a Service.
func ports(all ...v1.ServicePort) v1.ServiceSpec { return v1.ServiceSpec{Ports: all} }

func tcp(name string, port int32) v1.ServicePort {
	return v1.ServicePort{Name: name, Port: port, Protocol: v1.ProtocolTCP}
}

func udp(name string, port int32) v1.ServicePort {
	return v1.ServicePort{Name: name, Port: port, Protocol: v1.ProtocolUDP}
}
