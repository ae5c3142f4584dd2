//go:build ipvs

package ipvs

import (
	"errors"
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
)

// freeModule removes, as another program, all virtual servers and the rules that use ip_vs.
func (s *stage) freeModule(t testing.TB) {
	t.Helper()
	s.run(t, "ipvsadm -C")
	for _, program := range []string{"iptables", "ip6tables"} {
		for _, table := range []string{"mangle", "nat"} {
			s.run(t, program+" -t "+table+" -F")
		}
	}
}

// When ip_vs is unloaded and cannot be loaded again, nothing drains any more: the backend does not ask
// for it every second.
func TestNothingDrainsWithoutModule(t *testing.T) {
	d := newDrainStage(t, Options{}, nil)
	d.Apply(t, snapshotOf(d.second))
	d.stays(t, "before")
	target := d.backend(t).target
	target.mu.Lock() // else the goroutine that drains could see that its servers are gone
	d.freeModule(t)
	end := netnstest.WithoutModule(t, "ip_vs")
	target.mu.Unlock()
	d.awaitIdle(t)
	end()
	d.startAgain(t)
	d.converges(t, "loaded again", 2, snapshotOf(d.both))
	d.openTo(t, "tcp", d.vip, d.Hosts[0])
	d.isAsFresh(t, "loaded again")
}

// Cleanup removes everything if ip_vs was unloaded. A
// backend that has loaded it again fails until the process is another one. The function Cleanup leaves the
// module as it is.
func TestCleanupAfterUnloading(t *testing.T) {
	unload := func(t testing.TB) { netnstest.Unload(t, "ip_vs") }
	unloadForever := func(t testing.TB) { netnstest.WithoutModule(t, "ip_vs") }
	method := func(t testing.TB, s *stage) error { return s.backend(t).Cleanup(t.Context()) }
	function := func(t testing.TB, s *stage) error {
		return s.NS.Do(func() error { return Cleanup(t.Context(), s.Options) })
	}
	for name, tc := range map[string]struct {
		unload   func(testing.TB)
		cleanup  func(testing.TB, *stage) error
		isLoaded bool // afterwards
		works    bool // at once
	}{
		"method, loadable":   {unload, method, true, false},
		"method, missing":    {unloadForever, method, false, true},
		"function, loadable": {unload, function, false, true},
		"function, missing":  {unloadForever, function, false, true},
		"function, loaded":   {func(testing.TB) {}, function, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { asNewProcess(t) })
			s := newStage(t, Options{})
			s.Apply(t, snapshotOf(localPort(1), stagetest.Port(v1.IPv6Protocol, 2, 2)))
			s.freeModule(t)
			tc.unload(t)
			err := tc.cleanup(t, s)
			if errors.Is(err, ipvs.ErrReloaded) == tc.works {
				t.Errorf("Cleanup: got error %v, want it to be %v: %t", err, ipvs.ErrReloaded, !tc.works)
			}
			if !tc.works {
				s.startAgain(t)
				err = tc.cleanup(t, s)
			}
			if err != nil {
				t.Errorf("Cleanup: got error %v, want none", err)
			}
			if _, err := os.Stat("/sys/module/ip_vs"); (err == nil) != tc.isLoaded {
				t.Errorf("ip_vs after Cleanup: got error %v, want it loaded: %t", err, tc.isLoaded)
			}
			s.hasNothing(t)
		})
	}
}

// hasNothing requires that no objects of the backend are left.
func (s *stage) hasNothing(t *testing.T) {
	t.Helper()
	for _, command := range []string{"ip link", "ipset list -n", "iptables-save", "ip6tables-save"} {
		if got := s.run(t, command); strings.Contains(strings.ToLower(got), "vipkit") {
			t.Errorf("%s: got\n%s\nwant nothing of the backend", command, got)
		}
	}
}
