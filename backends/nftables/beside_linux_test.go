package nftables

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// No connection is refused or lost while another instance, which serves the same Service, comes
// and goes: by Cleanup, or because its IP family is switched off.
func TestNoConnectionIsLostToRemovals(t *testing.T) {
	t.Parallel()
	const (
		length = 5 * time.Second
		least  = 100
	)
	s := newTestbed(t, 4)
	vip := stagetest.Port(v1.IPv4Protocol, 0, 0)
	vip.Cluster = s.pool(0, 4)
	snapshot := proxy.NewSnapshot(stagetest.Node(), vip)
	s.Apply(t, snapshot)
	neighbour := &stage{s.Beside(t, Options{Identity: identity("other", 0x8000, -5)})}

	c := s.connectRepeatedly(t, vip.Frontends[0].Addr.String())
	removals, start := 0, time.Now()
	for ; continues(start, length, removals >= least); removals++ {
		neighbour.Options.Families = nil
		neighbour.Restart(t)
		neighbour.Apply(t, snapshot)
		if removals%2 == 0 {
			testenv.NoError(t, neighbour.Backend.Cleanup(t.Context()))
			continue
		}
		neighbour.Options.Families = []v1.IPFamily{v1.IPv6Protocol}
		neighbour.Restart(t)
		neighbour.Apply(t, snapshot)
	}
	connections, failed := c.end()
	t.Logf("%d connections, %d failed, in %d removals and %v", connections, failed, removals, time.Since(start).Round(time.Millisecond))
}

// A client without endpoints to connect to is refused each time: no limit of the kernel makes
// it wait.
func TestEveryConnectionIsRefused(t *testing.T) {
	const connects = 200
	s := newTestbed(t, 1)
	vip := stagetest.Port(v1.IPv4Protocol, 0, 0)
	for i := range vip.Frontends {
		vip.Frontends[i].FromInside = proxy.TrafficRoute{Action: proxy.Reject}
		vip.Frontends[i].FromOutside = proxy.TrafficRoute{Action: proxy.Reject}
	}
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), vip))
	at := vip.Frontends[0].Addr
	for _, to := range []netip.AddrPort{at, netip.AddrPortFrom(at.Addr(), at.Port()+1)} {
		start := time.Now()
		for range connects {
			err := s.Client.Do(func() error { return stagetest.Ask(t.Context(), netip.Addr{}, to.String()) })
			if !errors.Is(err, unix.ECONNREFUSED) {
				t.Fatalf("connecting to %s: got %v, want refusal", to, err)
			}
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("%d connects to %s took %v, want at most 2 s", connects, to, took)
		}
	}
}
