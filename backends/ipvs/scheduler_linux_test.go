//go:build ipvs

package ipvs

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// answering returns the servers that answer connections of one client.
func (w *talkers) answering(t testing.TB, to netip.AddrPort, connections int) map[netip.Addr]bool {
	t.Helper()
	seen := map[netip.Addr]bool{}
	for range connections {
		c, err := w.open(t, "tcp", to, netip.Addr{})
		testenv.NoError(t, err)
		a, err := c.ask()
		testenv.NoError(t, err)
		seen[a] = true
		c.reset()
	}
	return seen
}

// With the flag port, sh and mh send connections of one client to several endpoints. A Service
// gets and loses the flag while a connection is open, and its flags are adopted. One with an unknown
// flag is served with the default.
func TestSchedulerFlags(t *testing.T) {
	s := newStage(t, Options{Scheduler: "mh,mh-port"})
	w := newTalkers(t, s, 2)
	choose := func(scheduler string) *proxy.ServicePort {
		p := w.port(0, 0, 1)
		if scheduler != "" {
			p.Annotations = map[string]string{SchedulerAnnotation: scheduler}
		}
		return p
	}
	vip := choose("").Frontends[0].Addr
	var open *conversation
	var server netip.Addr // of open
	for _, x := range []struct {
		scheduler, lists string
		servers          int
	}{
		{"mh", "mh (mh-fallback)", 1},
		{"mh,mh-port", "mh (mh-fallback,mh-port)", 2},
		{"sh", "sh (sh-fallback)", 1},
		{"sh,sh-port", "sh (sh-fallback,sh-port)", 2},
		{"mh,mh-fallback", "mh (mh-fallback)", 1},
		{"", "mh (mh-fallback,mh-port)", 2},
		{"sh,port", "mh (mh-fallback,mh-port)", 2},
	} {
		want := snapshotOf(choose(x.scheduler))
		s.Apply(t, want)
		if got := s.run(t, "ipvsadm -Ln"); !strings.Contains(got, "TCP  "+vip.String()+" "+x.lists+"\n") {
			t.Errorf("%q: ipvsadm: got\n%s\nwant %s", x.scheduler, got, x.lists)
		}
		if got := len(w.answering(t, vip, 24)); got != x.servers {
			t.Errorf("%q: servers of one client: got %d, want %d", x.scheduler, got, x.servers)
		}
		if open == nil {
			var err error
			if open, err = w.open(t, "tcp", vip, netip.Addr{}); err != nil {
				t.Fatal(err)
			}
			if server, err = open.ask(); err != nil {
				t.Fatal(err)
			}
		}
		open.asks(t, x.scheduler, server)
		s.adopts(t, want)
	}
}
