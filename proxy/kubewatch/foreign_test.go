package kubewatch

import (
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// theirs returns a Service for another proxy.
func theirs(name, proxyName string, clusterIPs ...string) *v1.Service {
	s := service(name, strings.Join(clusterIPs, " "))
	s.Labels = map[string]string{labelProxyName: proxyName}
	return s
}

// wantForeign checks which of three addresses are foreign, as y and n.
func wantForeign(t *testing.T, s *Source, want string) {
	t.Helper()
	got := ""
	for _, a := range []string{"10.96.0.66", "fd00::66", "10.96.0.10"} {
		if s.Foreign(netip.MustParseAddr(a)) {
			got += "y"
		} else {
			got += "n"
		}
	}
	if got != want {
		t.Errorf("Foreign: got %s, want %s", got, want)
	}
}

// Foreign lists the Services of other proxies once, and again after the service ranges changed.
func TestForeign(t *testing.T) {
	client := FakeClient(theirs("theirs", "other", "10.96.0.66", "fd00::66"), service("ours", "10.96.0.10"), theirs("headless", "other", "None"))
	var broken atomic.Bool
	var requests atomic.Int64
	client.PrependReactor("list", "services", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if list, ok := a.(clienttesting.ListAction); ok && list.GetListRestrictions().Labels.String() == labelProxyName {
			requests.Add(1)
			return broken.Load(), nil, errors.New("no answer")
		}
		return false, nil, nil
	})
	h := newRecorder()
	reports := make(chan error, 100)
	s := &Source{Client: client, Handler: h, Report: func(err error) { reports <- err }}
	wantForeign(t, s, "yyy")
	start(t, s)
	h.until(t, "the start", func(s *state) bool { return s.synced == 1 })
	wantForeign(t, s, "yyn")
	wantForeign(t, s, "yyn")
	if n := requests.Load(); n != 1 {
		t.Errorf("got %d requests to the API server, want one", n)
	}

	testenv.NoError(t, client.Tracker().Add(theirs("more", "other", "10.96.0.10")))
	addRange(t, client, h, "10.96.0.0/16")
	wantForeign(t, s, "yyy")

	broken.Store(true)
	addRange(t, client, h, "10.97.0.0/16") // What was listed before is out of date.
	if !s.Foreign(netip.MustParseAddr("192.0.2.1")) || !s.Foreign(netip.MustParseAddr("192.0.2.2")) {
		t.Error("after a failed request: an address is not foreign, want that all may be")
	}
	if err := <-reports; !strings.Contains(err.Error(), "no answer") {
		t.Errorf("got report %v, want the error of the API server", err)
	}
	if n := requests.Load(); n != 3 || len(reports) > 0 {
		t.Errorf("got %d requests to the API server and %d more reports, want 3 and none", n, len(reports))
	}
}

// addRange creates a ServiceCIDR and waits until the handler receives it.
func addRange(t *testing.T, client *fake.Clientset, h *recorder, text string) {
	t.Helper()
	before := len(h.get().cidrs)
	testenv.NoError(t, client.Tracker().Add(cidr(strings.ReplaceAll(text, "/", "-"), text)))
	h.until(t, "a range", func(s *state) bool { return len(s.cidrs) > before })
}

func TestForeignToANamedProxy(t *testing.T) {
	ours := theirs("ours", "me", "10.96.0.10")
	client := FakeClient(theirs("theirs", "other", "10.96.0.66"), service("usual", "fd00::66"), ours)
	h := newRecorder()
	s := &Source{Client: client, Handler: h, ProxyName: "me"}
	start(t, s)
	h.until(t, "the start", func(s *state) bool { return s.synced == 1 })
	wantForeign(t, s, "yyn")
}
