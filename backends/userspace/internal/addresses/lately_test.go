package addresses

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// counted is a host that counts how often its addresses are listed.
type counted struct {
	addrs []netip.Addr
	lists int
}

func (c *counted) Addresses(context.Context) ([]netip.Addr, error) {
	c.lists++
	return c.addrs, nil
}

func (c *counted) Add(_ context.Context, a netip.Addr) error {
	c.addrs = append(c.addrs, a)
	return nil
}

func (*counted) Remove(context.Context, netip.Addr) error { return nil }

// Whoever sends many datagrams with the number of a node port as their source port has the addresses
// of the host listed once in some seconds. Changes by the backend count at once, others then.
func TestDatagramsDoNotListAddresses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counted{addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
		c := New(Config{Manager: h, Serving: Serving{Families: []v1.IPFamily{v1.IPv4Protocol}}})
		c.Follow(proxy.Snapshot{}, proxy.NewSnapshot(&proxy.Node{Name: "node-1"}, snapshots.Port("dns/UDP", ":30053")))
		is := func(a string, want bool) {
			t.Helper()
			if got := c.IsFrontend(v1.ProtocolUDP, netip.MustParseAddrPort(a+":30053")); got != want {
				t.Errorf("%s: got %v, want %v", a, got, want)
			}
		}
		for range 100 {
			is("198.51.100.1", false)
			is("192.0.2.1", true)
		}
		if h.lists != 1 {
			t.Errorf("200 datagrams: got %d lists, want 1", h.lists)
		}
		testenv.NoError(t, c.Manager.Add(t.Context(), netip.MustParseAddr("192.0.2.2")))
		is("192.0.2.2", true)
		h.addrs = append(h.addrs, netip.MustParseAddr("192.0.2.3"))
		time.Sleep(latelyLimit)
		is("192.0.2.3", true)
	})
}
