package repair_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/repair"
)

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
