package kubewatch

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// theirs returns a Service for another proxy.
func theirs(name, proxyName string, clusterIPs ...string) *v1.Service {
	s := service(name, strings.Join(clusterIPs, " "))
	s.Labels = map[string]string{labelProxyName: proxyName}
	return s
}

// wantForeign checks which of three addresses are foreign, as y and n.
func wantForeign(t *testing.T, s *Watcher, want string) {
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

// Foreign follows the Services of other proxies; until all Services are known, each address may be foreign.
func TestForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := FakeClient(theirs("theirs", "other", "10.96.0.66", "fd00::66"), service("ours", "10.96.0.10"))
		s := &Watcher{Client: client, Handler: newRecorder()}
		wantForeign(t, s, "yyy")
		start(t, s)
		synctest.Wait()
		wantForeign(t, s, "yyn")
		testenv.NoError(t, client.Tracker().Update(v1.SchemeGroupVersion.WithResource("services"), theirs("ours", "other", "10.96.0.10"), "test"))
		synctest.Wait()
		wantForeign(t, s, "yyy")
	})
}

func TestForeignToANamedProxy(t *testing.T) {
	ours := theirs("ours", "me", "10.96.0.10")
	client := FakeClient(theirs("theirs", "other", "10.96.0.66"), service("usual", "fd00::66"), ours)
	h := newRecorder()
	s := &Watcher{Client: client, Handler: h, ProxyName: "me"}
	start(t, s)
	h.until(t, "the start", func(s *state) bool { return s.synced == 1 })
	wantForeign(t, s, "yyn")
}

// watched is a Handler that looks at what is foreign whenever it receives a Service.
type watched struct {
	*recorder
	look func()
}

func (w watched) UpdateService(s *v1.Service) {
	w.look()
	w.recorder.UpdateService(s)
}

// Foreign answers from the former list while a new one arrives.
func TestForeignWhileListing(t *testing.T) {
	h, isForeign := newRecorder(), []bool{}
	s := &Watcher{Client: FakeClient(), NodeName: "n1"}
	s.Handler = watched{h, func() { isForeign = append(isForeign, s.Foreign(netip.MustParseAddr("192.0.2.1"))) }}
	feed := startedFeed(s)
	for range 2 {
		testenv.NoError(t, feed.Replace([]any{service("ours", "10.96.0.10")}, ""))
	}
	testenv.Same(t, []bool{true, false}, isForeign, "an address of no Service is foreign, in the first and in the second list")
}

// startedFeed returns the feed of Services as Run makes it.
func startedFeed(s *Watcher) *feed {
	s.events.Handler = s.Handler
	s.events.foreign.restart()
	f := s.feeds(&s.events)[0]
	f.synced = func() {}
	return f
}
