//go:build ipvs

package ipvs

import (
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
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
// for it every second, and removes what only virtual servers that drained needed.
func TestNothingDrainsWithoutModule(t *testing.T) {
	d := newDrainStage(t, drainServices(), nil)
	other := d.port(1, 0, 1)
	d.Apply(t, snapshotOf(d.both, other))
	vip := other.Frontends[0].Addr
	d.openTo(t, "tcp", vip, d.Hosts[0])
	d.Apply(t, snapshotOf(d.second))
	d.stays(t, "before")
	target := d.backend(t).target
	target.mu.Lock() // else the goroutine that drains could see that its servers are gone
	d.freeModule(t)
	end := netnstest.WithoutModule(t, "ip_vs")
	target.mu.Unlock()
	d.awaitIdle(t)
	for _, command := range []string{"ip -o addr show dev vipkit-ipvs0", "ipset save"} {
		if got := d.run(t, command); strings.Contains(got, vip.Addr().String()) {
			t.Errorf("%s: got %s, want no %v", command, got, vip.Addr())
		}
	}
	end()
	d.converges(t, "loaded again", 2, snapshotOf(d.both))
	d.openTo(t, "tcp", d.vip, d.Hosts[0])
	d.isAsFresh(t, "loaded again")
}
