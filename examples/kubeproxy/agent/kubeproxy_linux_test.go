package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const (
	apiAddress = "127.0.0.1:6443"
	metrics    = "http://127.0.0.1:10249"
	healthz    = "http://127.0.0.1:10256"
	nodeIP     = agenttest.NodeIP
	virtualIP  = "10.96.0.10:80"
	nodePort   = nodeIP + ":30080"
)

// world is a node with an API server, a client and a pod.
type world struct {
	t       *testing.T
	node    *agenttest.Node
	api     *apiServer
	stopAPI func()
	// config and kubeconfig are paths.
	config, kubeconfig string
}

func newWorld(t *testing.T, settings string) *world {
	t.Helper()
	w := &world{t: t, node: agenttest.NewNode(t, 8080, 8081, 5353, 7000), api: newAPIServer()}
	w.startAPI()
	w.api.put("nodes", node(nodeIP))
	w.api.put("servicecidrs", &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}})
	w.api.put("services", service("web", "10.96.0.10"))
	w.api.put("endpointslices", slice("web", 8080))
	w.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	testenv.NoError(t, os.WriteFile(w.kubeconfig, []byte(kubeconfigOf("http://"+apiAddress)), 0o600))
	w.config = w.configure(t, settings)
	return w
}

// configure returns the path of a configuration with some settings.
func (w *world) configure(t *testing.T, settings string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "config.yaml")
	text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\n" +
		// These two would change parameters of the whole machine.
		"conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 20h}\n" +
		"clientConnection: {kubeconfig: " + w.kubeconfig + "}\n" + settings
	testenv.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func (w *world) startAPI() {
	w.t.Helper()
	l, err := w.node.Listen(w.t.Context(), "tcp", apiAddress)
	testenv.NoError(w.t, err)
	w.stopAPI = w.api.serve(w.t, l)
}

func (w *world) start(flags ...string) *agenttest.Program {
	w.t.Helper()
	return start(w.t, w.node.NS, append([]string{"-config", w.config, "-hostname-override", "node-1"}, flags...)...)
}

// ask connects to an address, and returns the port of the endpoint that answers; empty if none does.
func (w *world) ask(ctx context.Context, address string) (port string, err error) {
	a, err := w.node.Ask(ctx, address)
	if err == nil && a.Own.Addr().String() != podIP {
		err = fmt.Errorf("the server is %v, want one of %s", a.Own, podIP)
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprint(a.Own.Port()), nil
}

// wantAnswer waits until the endpoint with a port answers at an address; empty if none answers.
func (w *world) wantAnswer(address, want string) {
	w.t.Helper()
	var got string
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if got, err = w.ask(w.t.Context(), address); got == want && (err == nil) == (want != "") {
			return
		}
	}
	w.t.Fatalf("reply at %s: got %q, error %v, want %q", address, got, err, want)
}

func TestAgent(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{nftablesMode, iptablesMode} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			if mode == iptablesMode {
				need(t, "iptables-restore")
			}
			serves(t, mode)
		})
	}
}

// serves checks the life of the agent in a mode.
func serves(t *testing.T, mode string) {
	t.Helper()
	w := newWorld(t, "mode: "+mode+"\nenableProfiling: true\noomScoreAdj: -998\nunknown: 1\n")
	p := w.start()
	p.Await("field oomScoreAdj is ignored")
	p.Await("field unknown is unknown")
	p.Await("msg=mode", "mode="+mode, "configured")
	p.Await("msg=serving", "ports=1")
	w.wantAnswer(virtualIP, "8080")
	w.wantAnswer(nodePort, "8080")
	wantPages(t, p, mode)
	w.api.put("endpointslices", slice("web", 8081))
	w.wantAnswer(virtualIP, "8081")
	w.changeNode(p, mode)
	w.restartAPI(p)
	p.Terminate(stopped)
	w.wantAnswer(virtualIP, "8081")

	again := w.start("-v", "1")
	again.Await("msg=sync", "full=true", "operations=0 ", "ports=2")
	again.Await("msg=serving", "operations=0 ")
	again.Kill()
	w.wantAnswer(virtualIP, "8081")
	if status := start(t, w.node.NS, "-cleanup").Wait(); status != 0 {
		t.Errorf("status of -cleanup: got %d, want 0", status)
	}
	w.wantAnswer(virtualIP, "")
}

// TestNodeSettings checks that a node setting that breaks Services is in the log, on the debug
// page and in the metrics until it is fixed.
func TestNodeSettings(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{nftablesMode, iptablesMode} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			if mode == iptablesMode {
				need(t, "iptables-restore")
			}
			w := newWorld(t, "mode: "+mode+"\n"+mode+": {syncPeriod: 1s}\n")
			forward := func(on string) {
				testenv.NoError(t, w.node.NS.Sysctl("net/ipv4/ip_forward", on))
			}
			forward("0")
			p := w.start()
			p.Await("node setting breaks Services", "field=net.ipv4.ip_forward", "sysctl -w net.ipv4.ip_forward=1")
			p.AwaitPage(metrics+"/metrics", `vipkit_node_problems{setting="net.ipv4.ip_forward"} 1`)
			p.AwaitPage(metrics+"/debug/services", "<li>Node node-1: net.ipv4.ip_forward: is 0: ")
			forward("1")
			p.Await("node setting breaks Services resolved", "field=net.ipv4.ip_forward")
			w.wantAnswer(virtualIP, "8080")
			p.Terminate(stopped)
		})
	}
}

// wantPages requests all pages.
func wantPages(t *testing.T, p *agenttest.Program, mode string) {
	t.Helper()
	p.AwaitPage(healthz+"/healthz", "200 OK", `"nodeEligible":true`)
	p.AwaitPage(metrics+"/proxyMode", "200 OK", mode)
	p.AwaitPage(metrics+"/healthz", "200 OK", "ok")
	p.AwaitPage(metrics+"/metrics", `vipkit_syncs_total{result="done"}`, "kubeproxy_sync_proxy_rules_duration_seconds", "process_cpu_seconds_total",
		`rest_client_requests_total{code="200",host="`+apiAddress+`",method="GET"}`, "vipkit_build_info{", "kubernetes_feature_enabled{")
	p.AwaitPage(metrics+"/", "200 OK", "/configz")
	p.AwaitPage(metrics+"/configz", "200 OK", `"mode":"`+mode+`"`)
	p.AwaitPage(metrics+"/flagz", "200 OK", "hostname-override=node-1")
	p.AwaitPage(metrics+"/statusz", "200 OK", "kube-proxy statusz")
	p.AwaitPage(metrics+"/debug/pprof/", "200 OK", "goroutine")
	p.AwaitPage(metrics+"/debug/services?destination=10.96.0.10:80&protocol=TCP", "200 OK",
		"default/web:http/TCP/IPv4", podIP+":8080", `<p><span class="forward">forward</span>`, "10.96.0.0/16")
}

// changeNode changes the Node, and deletes it.
func (w *world) changeNode(p *agenttest.Program, mode string) {
	w.t.Helper()
	w.api.put("nodes", node("192.0.2.99"))
	if mode == nftablesMode { // in the other one node ports answer at all addresses
		w.wantAnswer(nodePort, "")
	}
	w.api.put("nodes", node(nodeIP))
	w.wantAnswer(nodePort, "8081")
	w.api.remove("nodes", "node-1")
	p.AwaitPage(healthz+"/healthz", "503", `"nodeEligible":false`)
	p.Await("object problem", "the Node object was deleted")
	w.wantAnswer(nodePort, "8081")
}

// restartAPI stops the API server, and starts it with another Service and the Node.
func (w *world) restartAPI(p *agenttest.Program) {
	w.t.Helper()
	w.stopAPI()
	p.Await("API server", "connection refused")
	w.wantAnswer(virtualIP, "8081")
	more := service("more", "10.96.0.11")
	more.Spec.Ports[0].NodePort = 0
	w.api.put("services", more)
	w.api.put("endpointslices", slice("more", 8080))
	w.api.put("nodes", node(nodeIP))
	w.startAPI()
	w.wantAnswer("10.96.0.11:80", "8080")
	p.AwaitPage(healthz+"/healthz", "200 OK", `"nodeEligible":true`)
}

// TestTakeover checks that the rules of kube-proxy, or of another mode, are removed once they
// are not needed.
func TestTakeover(t *testing.T) {
	t.Parallel()
	nft := netnstest.NFT(t)
	need(t, "iptables-save")
	w := newWorld(t, "")
	inNode := func(args ...string) string {
		t.Helper()
		return runIn(t, w.node.NS, args...)
	}
	inNode(nft, "add table ip kube-proxy; add table ip6 kube-proxy; add table ip other; add chain ip kube-proxy services")
	p := w.start("-v", "1")
	p.Await("msg=mode", "mode=nftables", "none configured")
	p.Await("msg=serving")
	check := w.load()
	if got := inNode(nft, "list", "tables"); strings.Contains(got, "kube-proxy") || !strings.Contains(got, "other") {
		t.Errorf("tables: got\n%swant none of kube-proxy's, and the other one", got)
	}
	// Tables that are added later are left alone, as an administrator added them.
	inNode(nft, "add table ip kube-proxy")
	more := service("more", "10.96.0.11")
	more.Spec.Ports[0].NodePort = 0
	w.api.put("services", more)
	w.api.put("endpointslices", slice("more", 8080))
	w.wantAnswer("10.96.0.11:80", "8080")
	p.Terminate(stopped)
	if got := inNode(nft, "list", "tables"); !strings.Contains(got, "table ip kube-proxy") {
		t.Errorf("tables: got\n%swant also the one that was added later", got)
	}
	for _, mode := range []string{iptablesMode, nftablesMode} {
		w.setMode(mode)
		p := w.start()
		p.Await("msg=serving")
		w.wantAnswer(virtualIP, "8080")
		save := inNode("iptables-save", "-t", "nat")
		if has := strings.Contains(save, "KUBE-SERVICES"); has != (mode == iptablesMode) {
			t.Errorf("mode %s: chains of iptables: got %v\n%s", mode, has, save)
		}
		tables := inNode(nft, "list", "tables")
		if has := strings.Contains(tables, "table ip vipkit\n"); has != (mode == nftablesMode) {
			t.Errorf("mode %s: tables of nftables: got %v\n%s", mode, has, tables)
		}
		p.Terminate(stopped)
	}
	check()
}

// load makes connections all the time until check is called, which checks that none has
// failed or lasted more than two seconds.
func (w *world) load() (check func()) {
	stop, failures, count := make(chan struct{}), []error(nil), 0
	var connecting sync.WaitGroup
	connecting.Go(func() {
		for ; ; count++ {
			select {
			case <-stop:
				return
			default:
			}
			ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Second)
			if got, err := w.ask(ctx, virtualIP); err != nil || got != "8080" {
				failures = append(failures, fmt.Errorf("connection %d: got reply %q: %w", count, got, err))
			}
			cancel()
		}
	})
	return func() {
		w.t.Helper()
		close(stop)
		if connecting.Wait(); len(failures) > 0 || count == 0 {
			w.t.Errorf("failed connections: got %d of %d, want none: %v", len(failures), count, errors.Join(failures...))
		}
		w.t.Logf("%d connections", count)
	}
}

// setMode writes a mode into the configuration.
func (w *world) setMode(mode string) {
	w.t.Helper()
	text, err := os.ReadFile(w.config)
	testenv.NoError(w.t, err)
	before, _, _ := strings.Cut(string(text), "mode:")
	testenv.NoError(w.t, os.WriteFile(w.config, []byte(before+"mode: "+mode+"\n"), 0o600))
}

func TestInitOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	if status := w.start("-init-only").Wait(); status != 0 {
		t.Errorf("status: got %d, want 0", status)
	}
	const parameter = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established"
	var got []byte
	err := w.node.Do(func() (err error) {
		got, err = os.ReadFile(parameter)
		return err
	})
	if err != nil || string(got) != "72000\n" {
		t.Errorf("%s: got %q, error %v, want 72000", parameter, got, err)
	}
}

// TestCapabilities checks that the program needs only CAP_NET_ADMIN, and names it if it is
// missing.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	need(t, "setpriv")
	need(t, "iptables-restore")
	w := newWorld(t, "")
	start := func(capabilities string, flags ...string) *agenttest.Program {
		t.Helper()
		cmd := exec.Command("setpriv", "--bounding-set="+capabilities, "--inh-caps=-all", "--no-new-privs")
		cmd.Args = append(cmd.Args, agenttest.Command(t, flags...).Args...)
		return agenttest.Start(t, w.node.NS, patience, cmd)
	}
	for _, flags := range [][]string{{"-config", w.config}, {"-cleanup"}} {
		p := start("-all", flags...)
		p.Await("msg=failed", "CAP_NET_ADMIN")
		if status := p.Wait(); status != 1 {
			t.Errorf("%q without privileges: got status %d, want 1", flags, status)
		}
	}
	for _, mode := range []string{nftablesMode, iptablesMode} {
		w.setMode(mode)
		p := start("-all,+net_admin", "-config", w.config, "-hostname-override", "node-1")
		p.Await("msg=serving", "ports=1")
		w.wantAnswer(virtualIP, "8080")
		p.Terminate(stopped)
		p = start("-all,+net_admin", "-cleanup")
		p.Await("all rules are removed")
		w.wantAnswer(virtualIP, "")
	}
}
