package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// simulated is a simulated HNS as a client that must be closed.
type simulated struct{ *hcntest.Sim }

func (simulated) Close() error { return nil }

// windowsNode is a node with Windows: a simulated HNS with a network and a pod, and an API server.
type windowsNode struct {
	*config
	t      *testing.T
	hns    *hcntest.Sim
	api    *apiServer
	client kubernetes.Interface
	server string   // URL of the API server
	flags  []string // of config
	log    logr.Logger
}

func newWindowsNode(t *testing.T, network hcn.Network, flags string) *windowsNode {
	t.Helper()
	t.Setenv("ProgramData", t.TempDir())
	n := &windowsNode{t: t, hns: hcntest.New(hcn.Version{Major: 16}, netip.MustParseAddr("127.0.0.1")), api: newAPIServer()}
	network.Name = "l2"
	if _, err := n.hns.AddEndpoint(n.hns.AddNetwork(network), "pod", netip.MustParseAddr(podIP)); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.NoError(t, err)
	n.api.serve(t, l)
	n.server = "http://" + l.Addr().String()
	if n.client, err = kubernetes.NewForConfig(&rest.Config{Host: n.server}); err != nil {
		t.Fatal(err)
	}
	n.api.put("nodes", node("192.0.2.5"))
	n.api.put("services", service("web", "10.96.0.10"))
	n.api.put("endpointslices", slice("web", 8080))
	flags += " -network-name l2 -hostname-override node-1 -healthz-bind-address " + freePort(t) + " -metrics-bind-address " + freePort(t)
	n.flags = strings.Fields(flags)
	if n.config, err = readOn(t, windowsSystem, "", flags); err != nil {
		t.Fatal(err)
	}
	n.openHNS = func() (hnsClient, error) { return simulated{n.hns}, nil }
	return n
}

// freePort returns an address at which nothing listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.NoError(t, err)
	testenv.NoError(t, l.Close())
	return l.Addr().String()
}

// start runs the agent until stop is called.
func (n *windowsNode) start() (stop func() error) {
	ctx, cancel := context.WithCancel(n.t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- serveMode(ctx, n.config, kernelspaceMode, n.client, n.log)
	}()
	return func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(10 * time.Second):
			return fmt.Errorf("the agent has not ended")
		}
	}
}

// awaitDump waits until HNS has these objects.
func (n *windowsNode) awaitDump(want ...string) {
	n.t.Helper()
	got, all := "", strings.Join(want, "\n")
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if got = strings.TrimSpace(n.hns.Dump()); got == all {
			return
		}
	}
	n.t.Fatalf("HNS: got\n%s\nwant\n%s", got, all)
}

// awaitPage waits until a page has a text.
func awaitPage(t *testing.T, url, want string) {
	t.Helper()
	var got string
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if got = page(t.Context(), url); strings.Contains(got, want) {
			return
		}
	}
	t.Fatalf("%s: got\n%s\nwant %s", url, got, want)
}

func page(ctx context.Context, url string) string {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err.Error()
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return err.Error()
	}
	text, err := io.ReadAll(r.Body)
	return fmt.Sprint(r.Status, "\n", string(text), err, r.Body.Close())
}

const (
	clusterIPPolicy = "load balancer 10.96.0.10:80/6->%d distribution 0 flags 0 flags 0 to local 10.244.1.11"
	nodePortPolicy  = "load balancer 127.0.0.1:30080/6->%d distribution 0 flags 18 flags 0 to local 10.244.1.11"
)

// policies are the load balancers of the Service, with a port of its pod.
func policies(port int) []string {
	return []string{fmt.Sprintf(clusterIPPolicy, port), fmt.Sprintf(nodePortPolicy, port)}
}

// TestWindowsAgent checks that a simulated HNS follows the objects of an API server, over 20 starts
// of the agent, and that -cleanup removes all.
func TestWindowsAgent(t *testing.T) {
	n := newWindowsNode(t, hcn.Network{Type: "L2Bridge"}, "")
	stop := n.start()
	n.awaitDump(policies(8080)...)
	awaitPage(t, "http://"+n.HealthzBindAddress+"/healthz", "200 OK")
	at := "http://" + n.MetricsBindAddress
	awaitPage(t, at+"/proxyMode", kernelspaceMode)
	awaitPage(t, at+"/metrics", "kubeproxy_sync_proxy_rules_duration_seconds")
	awaitPage(t, at+"/debug/services?destination=10.96.0.10:80&protocol=TCP", podIP+":8080")
	n.api.put("endpointslices", slice("web", 8081))
	n.awaitDump(policies(8081)...)
	for i := range 20 {
		testenv.NoError(t, stop())
		n.awaitDump(policies(8081 + i)...) // they stay
		n.api.put("endpointslices", slice("web", int32(8082+i)))
		stop = n.start()
		n.awaitDump(policies(8082 + i)...)
	}
	n.api.remove("services", "web")
	n.awaitDump()
	n.api.put("services", service("web", "10.96.0.10"))
	n.awaitDump(policies(8101)...)
	testenv.NoError(t, stop())
	writes := func() int {
		calls := n.hns.Calls()
		return calls["CreateLoadBalancer"] + calls["ModifyLoadBalancer"] + calls["DeleteLoadBalancer"] + calls["CreateEndpoint"] + calls["DeleteEndpoint"]
	}
	before := writes()
	stop = n.start()
	awaitPage(t, "http://"+n.HealthzBindAddress+"/healthz", "200 OK")
	if err := stop(); err != nil || writes() != before {
		t.Errorf("an unchanged restart: got %d calls that write, error %v, want none", writes()-before, err)
	}
	n.cleansUp()
}

// TestHandlersEndWithRun checks that the handlers of an agent answer while it serves, and 503 afterwards.
func TestHandlersEndWithRun(t *testing.T) {
	n := newWindowsNode(t, hcn.Network{Type: "L2Bridge"}, "")
	a := &Agent{config: n.config}
	want := func(when string, status int) {
		t.Helper()
		for path, h := range map[string]http.Handler{"/healthz": a.Healthz(), "/livez": a.Healthz(), "/metrics": a.Pages()} {
			if got := get(t, h, path, "").Code; got != status {
				t.Errorf("%s %s: got status %d, want %d", path, when, got, status)
			}
		}
	}
	for range 2 {
		want("before Run", http.StatusServiceUnavailable)
		stop := n.start()
		awaitPage(t, "http://"+n.HealthzBindAddress+"/healthz", "200 OK")
		want("while the agent serves", http.StatusOK)
		testenv.NoError(t, stop())
	}
	want("after Run", http.StatusServiceUnavailable)
}

// cleansUp checks that -cleanup leaves nothing, and that it does so twice.
func (n *windowsNode) cleansUp() {
	n.t.Helper()
	n.cleanup = true
	for range 2 {
		if _, err := n.cleanUpAll(n.t.Context(), logr.Discard()); err != nil {
			n.t.Errorf("-cleanup: %v", err)
		}
		n.awaitDump()
	}
	if violations := n.hns.Violations(); len(violations) > 0 {
		n.t.Errorf("violations: %q", violations)
	}
	if _, err := os.Stat(stateFile(kernelspaceMode)); err == nil {
		n.t.Errorf("%s exists after -cleanup", stateFile(kernelspaceMode))
	}
}

// TestOverlayAgent checks that the agent finds the MAC address of the node, and makes the endpoints
// that an overlay network needs. In mode userspace, which has none of these settings, it removes them.
func TestOverlayAgent(t *testing.T) {
	address, mac := anInterface(t)
	n := newWindowsNode(t, hcn.Network{Type: "Overlay"}, "-source-vip 10.244.1.2")
	n.api.put("nodes", node(address))
	stop := n.start()
	for end := time.Now().Add(10 * time.Second); strings.Count(n.hns.Dump(), mac) < 2; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("HNS: got\n%s\nwant endpoints of 10.96.0.10 and 10.244.1.2 with %s", n.hns.Dump(), mac)
		}
	}
	testenv.NoError(t, stop())
	n.Winkernel = v1alpha1.KubeProxyWinkernelConfiguration{}
	if err := n.cleanUp(t.Context(), userspaceMode, logr.Discard()); err != nil {
		t.Errorf("in mode userspace: %v", err)
	}
	n.awaitDump()
	n.cleansUp()
}

// TestNoIPv6 checks that Services of both families are served by IPv4 where HNS or the network has no
// IPv6: nothing fails, and the log has one line about it.
func TestNoIPv6(t *testing.T) {
	address, _ := anInterface(t)
	for kind, flags := range map[string]string{"L2Bridge": "", "Overlay": "-source-vip 10.244.1.2"} {
		n := newWindowsNode(t, hcn.Network{Type: kind}, flags+" -iptables-sync-period 100ms")
		if kind == "L2Bridge" {
			n.hns = hcntest.New(hcn.Version{Major: 9, Minor: 5}, netip.MustParseAddr("127.0.0.1"))
			if _, err := n.hns.AddEndpoint(n.hns.AddNetwork(hcn.Network{Name: "l2", Type: kind}), "pod", netip.MustParseAddr(podIP)); err != nil {
				t.Fatal(err)
			}
		}
		both := service("web", "10.96.0.10")
		both.Spec.ClusterIPs = append(both.Spec.ClusterIPs, "fd00:96::10")
		both.Spec.IPFamilies = []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
		n.api.put("services", both)
		n.api.put("nodes", node(address))
		var mu sync.Mutex
		var lines []string
		n.log = funcr.New(func(_, args string) {
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(args, "IPv6") || strings.Contains(args, `"error"`) {
				lines = append(lines, args)
			}
		}, funcr.Options{})
		stop := n.start()
		awaitPage(t, "http://"+n.HealthzBindAddress+"/healthz", "200 OK")
		logged := func() string {
			mu.Lock()
			defer mu.Unlock()
			return strings.Join(lines, "\n")
		}
		for end := time.Now().Add(10 * time.Second); logged() == "" && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		testenv.NoError(t, stop())
		if got := logged(); strings.Contains(got, "\n") || !strings.Contains(got, "has no IPv6: Services are served at their addresses of IPv4 only") {
			t.Errorf("%s: lines about IPv6, and with errors: got\n%s\nwant one that says that it is not served", kind, got)
		}
		if !strings.Contains(n.hns.Dump(), "load balancer 10.96.0.10:80/6->8080") {
			t.Errorf("%s: HNS: got\n%s\nwant a load balancer of 10.96.0.10", kind, n.hns.Dump())
		}
	}
}

// anInterface returns an address of this machine, and the MAC address of its interface.
func anInterface(t *testing.T) (address, mac string) {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	testenv.NoError(t, err)
	for _, a := range addresses {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || !p.Addr().Is4() {
			continue
		}
		if mac, err = macOf([]netip.Addr{p.Addr()}); err == nil && mac != "" {
			return p.Addr().String(), mac
		}
	}
	testenv.CannotRun(t, "needs an interface with an IPv4 address and a MAC address")
	return "", ""
}

// TestFailedCalls checks that calls of HNS that fail are counted, and that the agent then serves.
func TestFailedCalls(t *testing.T) {
	n := newWindowsNode(t, hcn.Network{Type: "L2Bridge"}, "-iptables-sync-period 200ms")
	failures := map[string]int{"CreateLoadBalancer": 2, "ModifyLoadBalancer": 1, "DeleteLoadBalancer": 1}
	n.hns.SetFault(func(c hcntest.Call) (f hcntest.Fault) {
		if failures[c.Method] > 0 {
			failures[c.Method]--
			f.Err = &hcn.Error{Op: c.Method, Code: hcn.CodePortExists + 0x100}
		}
		return f
	})
	stop := n.start()
	n.awaitDump(policies(8080)...)
	n.api.put("endpointslices", slice("web", 8081))
	n.awaitDump(policies(8081)...)
	n.api.remove("services", "web")
	n.awaitDump()
	for _, call := range []string{"create", "update", "delete"} {
		awaitPage(t, "http://"+n.MetricsBindAddress+"/metrics",
			"kubeproxy_sync_proxy_rules_winkernel_lb_"+call+`_failures_total{error="0x803b0113",ip_family="IPv4",lb_type=`)
	}
	testenv.NoError(t, stop())
}

// TestNoNetwork checks that the agent waits for its network, and serves when a CNI plugin has made it.
func TestNoNetwork(t *testing.T) {
	n := newWindowsNode(t, hcn.Network{Type: "L2Bridge"}, "")
	n.Winkernel.NetworkName = "later"
	stop := n.start()
	awaitPage(t, "http://"+n.MetricsBindAddress+"/metrics", "vipkit_syncs_total")
	n.awaitDump()
	id := n.hns.AddNetwork(hcn.Network{Name: "later", Type: "L2Bridge"})
	if _, err := n.hns.AddEndpoint(id, "pod", netip.MustParseAddr(podIP)); err != nil {
		t.Fatal(err)
	}
	n.awaitDump(policies(8080)...)
	testenv.NoError(t, stop())
}

var _ hcn.Client = (*countedHNS)(nil)

func TestFamilyOfFailures(t *testing.T) {
	t.Parallel()
	got := describe(&hcn.LoadBalancer{Flags: hcn.IPv6, PortMappings: []hcn.PortMapping{{Flags: hcn.VIPExternalIP}}})
	if want := [2]string{string(v1.IPv6Protocol), "ExternalIP"}; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
