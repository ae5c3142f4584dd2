package repair_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/filestore"
	"github.com/vipkit/vipkit/allocator/repair"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// newFile returns a store without a map.
func newFile(t *testing.T) *filestore.Store {
	t.Helper()
	store, err := filestore.Open(filepath.Join(t.TempDir(), "map"))
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, store)
	return store
}

func storeOf(t *testing.T, text string) *allocator.Memory {
	t.Helper()
	return allocator.NewMemory(allocator.State{Claims: claims(t, text), Version: 1000}, nil)
}

// TestNoOwners checks that a pass with an empty list of owners frees nothing unless the
// options allow such a list.
func TestNoOwners(t *testing.T) {
	store := storeOf(t, "10.96.0.1 a 1h\n10.96.0.2 b 61s reserved")
	before := held(t, store)
	o := options(t)
	o.Force = false
	findings, err := repair.Reconcile(t.Context(), store, uses(""), o)
	if !errors.Is(err, repair.ErrNoOwners) || len(findings) != 2 {
		t.Errorf("got %v, error %v, want two findings and %v", findings, err, repair.ErrNoOwners)
	}
	testenv.Same(t, before, held(t, store), "claims after a refused pass")
	o.Force = true
	if _, err := repair.Reconcile(t.Context(), store, uses(""), o); err != nil || held(t, store) != "" {
		t.Errorf("with Force: error %v, the store holds %q, want nothing", err, held(t, store))
	}
	// A pass that frees nothing is no error.
	o.Force = false
	for _, harmless := range []string{"", "10.96.0.2 b 61s reserved", "10.96.0.1 a 1s", "10.97.0.1 a 1h"} {
		if _, err := repair.Reconcile(t.Context(), storeOf(t, harmless), uses(""), o); err != nil {
			t.Errorf("a store with %q: %v", harmless, err)
		}
	}
}

// TestNoMapWithoutOwners checks that a pass with an empty list of owners creates a map
// only if the options allow such a list.
func TestNoMapWithoutOwners(t *testing.T) {
	store := newFile(t)
	o := options(t)
	for _, allowed := range []bool{false, true} {
		o.Force = allowed
		_, err := repair.Reconcile(t.Context(), store, uses(""), o)
		_, loadErr := store.Load(t.Context())
		if errors.Is(err, repair.ErrNoOwners) == allowed || errors.Is(loadErr, allocator.ErrNoMap) == allowed {
			t.Errorf("allowed %t: Reconcile: error %v, Load: error %v", allowed, err, loadErr)
		}
	}
}

// TestMassRemoval checks that a pass whose list lacks most owners takes no claim from
// them, and still adds missing claims.
func TestMassRemoval(t *testing.T) {
	const all = 100
	for _, c := range []struct {
		listed int
		force  bool
		want   int
	}{
		{listed: 50, want: 50},
		{listed: 49, want: all},
		{listed: 1, force: true, want: 1},
	} {
		var had, used strings.Builder
		for i := range all {
			fmt.Fprintf(&had, "10.96.0.%d old-%d 1h\n", i+1, i)
			if i < c.listed {
				fmt.Fprintf(&used, "10.96.0.%d old-%d\n", i+1, i)
			}
		}
		used.WriteString("10.96.0.200 new\n")
		store := storeOf(t, had.String())
		o := options(t)
		o.Force = c.force
		_, err := repair.Reconcile(t.Context(), store, uses(used.String()), o)
		tooMany, isTooMany := errors.AsType[*repair.TooManyError](err)
		if isTooMany != (c.want == all) || isTooMany && tooMany.Removals != all-c.listed {
			t.Errorf("%+v: got error %v, want a TooManyError with %d removals: %t", c, err, all-c.listed, c.want == all)
		}
		testenv.Same(t, c.want, strings.Count(held(t, store), "old-"), "%+v: remaining claims", c)
		if !strings.Contains(held(t, store), "10.96.0.200 new") {
			t.Errorf("%+v: the store lacks the missing claim of new, want it added", c)
		}
	}
}

// TestUnreadableUseFreesNothing checks that an owner with an unreadable use keeps its
// claims, as the use may stand for any of them; and that a list with only unreadable uses
// is ErrNoOwners.
func TestUnreadableUseFreesNothing(t *testing.T) {
	const had = "10.96.0.1 a 1h\n10.96.0.2 a 1h\n10.96.0.3 b 1h"
	for _, c := range []struct {
		uses, left string
		err        error
	}{
		{uses: "10.96.0.1x a\n10.96.0.2 c", left: "10.96.0.1 a\n10.96.0.2 a"},
		{uses: "10.96.0.1x b\n10.96.0.2 c", left: "10.96.0.2 c\n10.96.0.3 b"},
		{uses: "10.96.0.1x z", left: "10.96.0.1 a\n10.96.0.2 a\n10.96.0.3 b", err: repair.ErrNoOwners},
	} {
		store := storeOf(t, had)
		o := options(t)
		o.Force = false
		if _, err := repair.Reconcile(t.Context(), store, uses(c.uses), o); !errors.Is(err, c.err) {
			t.Errorf("%q: got error %v, want %v", c.uses, err, c.err)
		}
		testenv.Same(t, c.left, held(t, store), "%q: claims after the pass", c.uses)
	}
}

// picky is a store that refuses the claims of one owner.
type picky struct {
	allocator.Store
	owner  allocator.Owner
	reason error
	writes int
}

func (p *picky) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	p.writes++
	for _, op := range ops {
		if op.Claim.Owner == p.owner {
			return nil, fmt.Errorf("owner %s: %w", p.owner, p.reason)
		}
	}
	return p.Store.Commit(ctx, ops)
}

// TestRefusedOwner has an owner whose claim a store refuses as invalid. The pass must mend all
// other findings, and return the error.
func TestRefusedOwner(t *testing.T) {
	const used = 200
	for _, c := range []struct {
		reason        error
		least, writes int
	}{
		{reason: allocator.ErrInvalid, least: used - 1, writes: 4 + 64},
		{reason: allocator.ErrNotInRange, least: used - 1, writes: 4 + 64},
		{reason: context.DeadlineExceeded, writes: 4}, // the others would fail, too
	} {
		store := &picky{Store: allocator.NewMemory(allocator.State{}, nil), owner: "bad", reason: c.reason}
		list := func(context.Context) ([]repair.Use, error) {
			var all []repair.Use
			for i := range used {
				u := repair.Use{Owner: "good", Text: fmt.Sprint(30000 + i)}
				if i == 0 {
					u.Owner = "bad"
				}
				all = append(all, u)
			}
			return all, nil
		}
		findings, err := repair.Reconcile(t.Context(), store, list, options(t))
		if !errors.Is(err, c.reason) {
			t.Errorf("got error %v, want %v", err, c.reason)
		}
		mended := 0
		for _, f := range findings {
			if f.Mended {
				mended++
			}
		}
		if len(findings) != used || mended < c.least || mended == used || store.writes > c.writes {
			t.Errorf("%v: got %d findings, %d of them mended, in %d writes, want %+v", c.reason, len(findings), mended, store.writes, c)
		}
	}
}
