package addresses

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// refusing is a Manager that can change nothing.
type refusing struct {
	host  []netip.Addr
	lists int // calls of Addresses
}

func (m *refusing) Addresses(context.Context) ([]netip.Addr, error) {
	m.lists++
	return slices.Clone(m.host), nil
}
func (*refusing) Add(context.Context, netip.Addr) error    { return backends.ErrUnavailable }
func (*refusing) Remove(context.Context, netip.Addr) error { return backends.ErrUnavailable }

// A commit that ends early owns no address that it did not try to add: another program may add it later.
func TestCommitOwnsOnlyWhatItAdded(t *testing.T) {
	t.Parallel()
	m := &refusing{}
	config := Config{Manager: m, State: filepath.Join(t.TempDir(), "state")}
	c := New(config)
	addrs := snapshots.Addrs("10.96.0.1", "10.96.0.2")
	out := c.Commit(t.Context(), []op{{Key: Key{addr: addrs[0]}}, {Key: Key{addr: addrs[1]}}})
	if !errors.Is(out.Err(), backends.ErrUnavailable) || len(out.Failed) != 2 {
		t.Fatalf("got outcome %+v, want both ops to fail with %v", out, backends.ErrUnavailable)
	}
	m.host = addrs // another program adds both
	for name, c := range map[string]*Capture{"this process": c, "the next process": New(config)} {
		for o, err := range c.List(t.Context()) {
			t.Errorf("%s owns %v, want nothing; error: %v", name, o.Key.addr, err)
		}
	}
}

// An address that could not be removed is no problem once it is wanted again.
func TestAddressWantedAgain(t *testing.T) {
	t.Parallel()
	a := netip.MustParseAddr("10.96.0.1")
	m := &refusing{}
	c := New(Config{Manager: m, State: filepath.Join(t.TempDir(), "state")})
	c.own.Add(a.String())
	m.host = []netip.Addr{a}
	for _, step := range []struct {
		kind     backends.OpKind
		problems int
	}{{backends.Remove, 1}, {backends.Add, 0}} {
		if err := c.Commit(t.Context(), []op{{Kind: step.kind, Key: Key{addr: a}}}).Err(); err != nil {
			t.Fatalf("%v: got error %v, want none", step.kind, err)
		}
		if got := c.CheckNode(proxy.Snapshot{}); len(got) != step.problems {
			t.Errorf("%v: got problems %v, want %d", step.kind, got, step.problems)
		}
	}
}

// Whoever sends many datagrams with the number of a node port as their source port does not have the
// addresses of the host listed: the last listing counts.
func TestDatagramsDoNotListAddresses(t *testing.T) {
	t.Parallel()
	m := &refusing{host: snapshots.Addrs("192.0.2.1")}
	c := New(Config{Manager: m})
	for lists, listed := range []bool{false, true} {
		for a, want := range map[string]bool{"192.0.2.1": listed, "198.51.100.1": false} {
			if got := c.isLocal(netip.MustParseAddr(a)); got != want {
				t.Errorf("after %d listings: %s is the host's: got %v, want %v", lists, a, got, want)
			}
		}
		testenv.Same(t, lists, m.lists, "listings")
		_ = c.Drifted(t.Context())
	}
}
