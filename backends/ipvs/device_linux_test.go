//go:build ipvs

package ipvs

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/pause"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Pods start and end while many addresses are listed: a listing that a change of interfaces interrupts
// is repeated.
func TestListsWhileLinksChange(t *testing.T) {
	s := newStage(t, Options{})
	s.Apply(t, snapshotOf())
	d := &s.backend(t).target.device
	const addresses = 1000
	for i := range addresses {
		a := netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)})
		testenv.NoError(t, d.change(&op{Kind: backends.Add, Key: key{kind: kindAddress, addr: netip.AddrPortFrom(a, 0)}}))
	}
	ctx, stop := context.WithCancel(t.Context())
	var changing sync.WaitGroup
	changing.Go(func() {
		for pause.For(ctx, 50*time.Millisecond) == nil { // a try takes less
			l := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "pod"}}
			if err := s.NS.Netlink().LinkAdd(l); err != nil {
				t.Error(err)
				return
			}
			if err := s.NS.Netlink().LinkDel(l); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 200 {
		if own, _, err := d.prepare(); err != nil || len(own) != addresses {
			t.Errorf("addresses of the device: got %d, error %v, want %d and none", len(own), err, addresses)
			break
		}
	}
	for range 3 {
		if err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, snapshotOf(localPort(1))); err != nil {
			t.Errorf("Apply: got error %v, want none", err)
		}
	}
	stop()
	changing.Wait()
}
