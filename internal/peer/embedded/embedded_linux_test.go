package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/vipkit/vipkit/examples/kubeproxy/agent"
	"github.com/vipkit/vipkit/internal/peer/controlplane"
	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const (
	patience = 2 * time.Minute
	nodeName = "node-1"
	podPort  = 8080
	// pages is where the program serves the handlers of its agents, below their names.
	pages = "127.0.0.1:7070"
	// stopped is the last line of the program.
	stopped = "all agents have ended"
)

func TestMain(m *testing.M) {
	os.Exit(agenttest.Main(distribution, func() int { return netnstest.Main(m, testenv.Processes) }))
}

// distribution is the program: its first argument is the host of the API server, the second one the token; with a third
// one it cleans up.
func distribution(args []string, stderr io.Writer) int {
	log := logr.FromSlogHandler(slog.NewTextHandler(stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	mux := http.NewServeMux()
	var all []*agent.Agent
	for _, name := range []string{"one", "two"} {
		a, err := newAgent(name, &rest.Config{Host: args[0], BearerToken: args[1], TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, log)
		if err != nil {
			log.Error(err, "refused")
			return 1
		}
		all = append(all, a)
		mux.Handle("/"+name+"/", http.StripPrefix("/"+name, a.Pages()))
		mux.Handle("/"+name+"/healthz", http.StripPrefix("/"+name, a.Healthz()))
	}
	l, err := net.Listen("tcp", pages)
	if err != nil {
		log.Error(err, "no pages")
		return 1
	}
	go func() { _ = http.Serve(l, mux) }() //nolint:gosec // It ends with the process.
	run := (*agent.Agent).Run
	if len(args) > 2 {
		run = (*agent.Agent).Cleanup
	}
	errs := make([]error, len(all))
	var running sync.WaitGroup
	for i, a := range all {
		running.Go(func() { errs[i] = run(a, ctx) })
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		log.Error(err, "failed")
		return 1
	}
	log.Info(stopped)
	return 0
}

// newAgent returns the agent with a name, whose tables have that name.
func newAgent(name string, apiServer *rest.Config, log logr.Logger) (*agent.Agent, error) {
	none := new(int32) // Its parameters hold for the whole machine.
	configuration := &v1alpha1.KubeProxyConfiguration{Mode: "nftables", ClusterCIDR: "10.244.0.0/16", Conntrack: v1alpha1.KubeProxyConntrackConfiguration{MaxPerCore: none, Min: none}}
	o := agent.Options{Configuration: configuration, RESTConfig: apiServer, NodeName: nodeName, Logger: log.WithName(name), Hooks: agent.Hooks{NoListen: true}}
	o.Identity.Name = name
	return agent.New(o)
}

// TestTwoAgents has two agents serve in one process. Both follow the API server; they end without error, their rules stay,
// and each removes its own ones.
func TestTwoAgents(t *testing.T) {
	netnstest.Program(t, "nft")
	node := agenttest.NewNode(t, podPort)
	cp := controlplane.Start(t, controlplane.Options{})
	client, err := kubernetes.NewForConfig(cp.Config())
	testenv.NoError(t, err)
	vip := fill(t, client)
	l, err := node.Listen(t.Context(), "tcp", "127.0.0.1:0")
	testenv.NoError(t, err)
	controlplane.Relay(t, l, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(cp.Config().Host, "https://"))
	})
	args := []string{"https://" + l.Addr().String(), cp.Config().BearerToken}

	p := agenttest.Start(t, node.NS, patience, agenttest.Command(t, args...))
	p.AwaitEach([]string{"msg=serving", "logger=one"}, []string{"msg=serving", "logger=two"})
	for _, name := range []string{"one", "two"} {
		p.AwaitPage("http://"+pages+"/"+name+"/healthz", `"lastUpdated"`)
		p.AwaitPage("http://"+pages+"/"+name+"/metrics", "kubeproxy_sync_proxy_rules_duration_seconds_count", "rest_client_requests_total{")
	}
	wantTables(t, node, "one", "two")
	wantAnswer(t, node, vip, true)
	p.Terminate(stopped)
	wantTables(t, node, "one", "two")
	wantAnswer(t, node, vip, true)

	if status := agenttest.Start(t, node.NS, patience, agenttest.Command(t, append(args, "cleanup")...)).Wait(); status != 0 {
		t.Errorf("cleanup: got status %d, want 0", status)
	}
	wantTables(t, node)
	wantAnswer(t, node, vip, false)
}

// fill creates the Node, and a Service with a pod. It returns the address of the Service.
func fill(t *testing.T, client kubernetes.Interface) (address string) {
	t.Helper()
	n := objects.Node(nodeName, "east", agenttest.NodeIP)
	created, err := client.CoreV1().Nodes().Create(t.Context(), n.DeepCopy(), metav1.CreateOptions{})
	testenv.NoError(t, err)
	created.Status.Addresses = n.Status.Addresses
	_, err = client.CoreV1().Nodes().UpdateStatus(t.Context(), created, metav1.UpdateOptions{})
	testenv.NoError(t, err)
	s := objects.Service("web", "10.96.0.10")
	_, err = client.CoreV1().Services("default").Create(t.Context(), s, metav1.CreateOptions{})
	testenv.NoError(t, err)
	_, err = client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), objects.Slice("web-1", "web", agenttest.Pod1IP), metav1.CreateOptions{})
	testenv.NoError(t, err)
	return s.Spec.ClusterIP + ":80"
}

// wantAnswer waits until the pod answers at an address, or checks that it does not.
func wantAnswer(t *testing.T, node *agenttest.Node, address string, want bool) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		answer, err := node.Ask(ctx, address)
		cancel()
		if (err == nil) == want {
			return
		}
		if time.Now().After(end) || !want {
			t.Fatalf("%s: got answer %+v, error %v; want an answer: %t", address, answer, err, want)
		}
	}
}

// wantTables checks which tables of nf_tables there are, by their names.
func wantTables(t *testing.T, node *agenttest.Node, names ...string) {
	t.Helper()
	out, err := netnstest.Run(t, node.NS, "", "nft", "list", "tables")
	testenv.NoError(t, err)
	for _, name := range names {
		if want := fmt.Sprintf("table ip %s\n", name); !strings.Contains(out, want) {
			t.Errorf("got the tables\n%s\nwant also %s", out, want)
		}
	}
	if len(names) == 0 && strings.TrimSpace(out) != "" {
		t.Errorf("got the tables\n%s\nwant none", out)
	}
}
