package agent

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// TestNewNamesEachField checks that one error names all wrong values, each with the path of its field and in one line.
func TestNewNamesEachField(t *testing.T) {
	t.Parallel()
	c := &v1alpha1.KubeProxyConfiguration{
		BindAddress: "host", HealthzBindAddress: "localhost", MetricsBindAddress: "10249", ClusterCIDR: "10.0.0.1", NodePortAddresses: []string{"x"},
		FeatureGates: map[string]bool{"WinDSR": false},
	}
	c.Conntrack.UDPTimeout.Duration = -time.Second
	c.IPTables.MasqueradeBit = new(int32(32))
	c.IPTables.SyncPeriod.Duration = -1
	o := Options{Configuration: c, NodeName: " ", Client: fake.NewClientset(), RESTConfig: &rest.Config{}}
	o.Identity.Name = "One"
	_, err := New(o)
	if err == nil {
		t.Fatal("got no error")
	}
	lines := strings.Split(err.Error(), "\n")
	want := []string{
		"bindAddress: ", "healthzBindAddress: ", "metricsBindAddress: ", "nodePortAddresses[0]: ", "featureGates: ", "conntrack.udpTimeout: ", "iptables.masqueradeBit: ",
		"hostnameOverride: ", "the options Client and RESTConfig ", "identity: ",
	}
	if runtime.GOOS == "linux" {
		want = append(want, "clusterCIDR: ", "iptables.syncPeriod: ")
	}
	for _, path := range want {
		found := 0
		for _, line := range lines {
			if strings.HasPrefix(line, path) {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%s: got %d lines, want one; error:\n%v", path, found, err)
		}
	}
	if *c.IPTables.MasqueradeBit != 32 || c.Conntrack.Min != nil {
		t.Error("the configuration was changed")
	}
}

// TestNewWithDefaults checks that the zero options are valid, and that handlers answer before the agent serves.
func TestNewWithDefaults(t *testing.T) {
	t.Setenv("KUBE_NETWORK", "nat") // Windows needs the name.
	for _, o := range []Options{{}, {Configuration: &v1alpha1.KubeProxyConfiguration{}}} {
		a, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		if got := *a.config.Conntrack.MaxPerCore; got != 32<<10 || a.config.DrainTimeout <= 0 {
			t.Errorf("got %d flows for each CPU, %v for draining; want kube-proxy's default and a period", got, a.config.DrainTimeout)
		}
		for name, h := range map[string]http.Handler{"Healthz": a.Healthz(), "Pages": a.Pages()} {
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody)); w.Code != http.StatusServiceUnavailable {
				t.Errorf("%s before Run: got status %d, want 503", name, w.Code)
			}
		}
	}
}

// TestBackendHook checks that the hook opens the backend of the mode, and that its error ends Run.
func TestBackendHook(t *testing.T) {
	t.Parallel()
	failed, asked := errors.New("no backend"), ""
	c := &v1alpha1.KubeProxyConfiguration{Mode: v1alpha1.ProxyMode(supportedMode())}
	c.Conntrack.MaxPerCore = new(int32(0)) // It would change this machine.
	c.Conntrack.TCPEstablishedTimeout, c.Conntrack.TCPCloseWaitTimeout = &c.ConfigSyncPeriod, &c.ConfigSyncPeriod
	a, err := New(Options{Configuration: c, Client: fake.NewClientset(), Hooks: Hooks{Backend: func(mode string) (proxy.Backend, error) {
		asked = mode
		return nil, failed
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Run(t.Context()); !errors.Is(err, failed) || asked != supportedMode() {
		t.Errorf("got error %v, mode %q; want the hook's, and %s", err, asked, supportedMode())
	}
}

// TestIdentities checks which names and marks the backends of an agent get.
func TestIdentities(t *testing.T) {
	t.Parallel()
	c := newConfig("linux")
	if got, want := c.identity(kubeProxyChains, 4), (backends.Identity{Name: kubeProxyChains, Mark: 4}); got != want {
		t.Errorf("by default: got %+v, want %+v", got, want)
	}
	c.Identity = backends.Identity{Name: "one", Mark: 8, Priority: -1}
	if got := c.identity(kubeProxyChains, 4); got != c.Identity {
		t.Errorf("got %+v, want the options' identity, %+v", got, c.Identity)
	}
}
