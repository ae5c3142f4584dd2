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
)

// refusing is a Manager that can change nothing.
type refusing struct{ host []netip.Addr }

func (m *refusing) Addresses(context.Context) ([]netip.Addr, error) { return slices.Clone(m.host), nil }
func (*refusing) Add(context.Context, netip.Addr) error             { return backends.ErrUnavailable }
func (*refusing) Remove(context.Context, netip.Addr) error          { return backends.ErrUnavailable }

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
