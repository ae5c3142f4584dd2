package allocator_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/vipkit/vipkit/allocator"
)

// undoing is a store whose next change of several keys is made, but its answer is lost, so
// that the store undoes the change of the first key. The request that undoes it gets no answer
// either, and arrives when late is called.
type undoing struct {
	allocator.Store
	armed bool
	late  func() error
}

func (u *undoing) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	if !u.armed || len(ops) < 2 {
		return u.Store.Commit(ctx, ops)
	}
	u.armed = false
	before, err := u.Store.Get(ctx, ops[0].Claim.Key)
	if err != nil {
		return nil, err
	}
	versions, err := u.Store.Commit(ctx, ops)
	if err != nil {
		return nil, err
	}
	undo := ops[0]
	undo.Delete = len(before.Claims) == 0
	if !undo.Delete {
		undo.Claim = before.Claims[0]
	}
	undo.Claim.Version = versions[0]
	u.late = func() error {
		_, err := u.Store.Commit(context.WithoutCancel(ctx), []allocator.Op{undo})
		return err
	}
	return nil, fmt.Errorf("%w: undoing a change got no answer", allocator.ErrUnknown)
}

// TestLateUndo has a store undo a part of a change after the pool has read that the whole
// change was made. The keys must stay with their owner.
func TestLateUndo(t *testing.T) {
	two := []allocator.Request{next(allocator.IPv4), next(allocator.Port)}
	for name, take := range map[string]func(*allocator.Pool, *undoing) ([]allocator.Claim, error){
		"Allocate": func(p *allocator.Pool, u *undoing) ([]allocator.Claim, error) {
			u.armed = true
			return p.Allocate(t.Context(), "web", two...)
		},
		"Bind": func(p *allocator.Pool, u *undoing) ([]allocator.Claim, error) {
			claims := mustReserve(t, p, "web", two...)
			u.armed = true
			return p.Bind(t.Context(), claims...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := &undoing{Store: newMemory()}
			p := newPool(t, store, "10.96.0.0/24", "30000-32767")
			claims, err := take(p, store)
			if err != nil || len(claims) != 2 || store.late == nil {
				t.Fatalf("got claims %v, error %v, want two", claims, err)
			}
			if err := store.late(); err == nil {
				t.Error("the change was undone")
			}
			for _, want := range claims {
				got, err := store.Get(t.Context(), want.Key)
				if err != nil || len(got.Claims) != 1 || got.Claims[0] != want || !got.Claims[0].IsBound() {
					t.Errorf("the store holds %v, error %v, want %v", got.Claims, err, want)
				}
				if known, ok := p.Lookup(want.Key); !ok || known != want {
					t.Errorf("the pool has %v, want %v", known, want)
				}
			}
		})
	}
}
