package kubestore_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestSeveralRequestsAtOnce checks that a commit of many keys sends several requests at once:
// none is handled before as many others are in flight.
func TestSeveralRequestsAtOnce(t *testing.T) {
	t.Parallel()
	const atOnce = 8
	a, s := newStore(t)
	var mu sync.Mutex
	here, all := 0, make(chan struct{})
	a.wait = func(name string) {
		mu.Lock()
		mine := all
		if here++; here == atOnce {
			close(all)
			here, all = 0, make(chan struct{})
		}
		mu.Unlock()
		select {
		case <-mine:
		case <-time.After(time.Minute):
			t.Errorf("request about %s: got fewer than %d in flight", name, atOnce)
		}
	}
	var ops []allocator.Op
	for i := range 3 * atOnce {
		ops = append(ops, allocator.Op{Claim: allocator.Claim{Key: storetest.Key(i), Owner: "me", Token: 1}})
	}
	versions, err := s.Commit(t.Context(), ops)
	if err != nil || len(versions) != len(ops) || len(a.addresses()) != len(ops) {
		t.Errorf("got %d versions, error %v, %d objects, want %d", len(versions), err, len(a.addresses()), len(ops))
	}
}

// TestAllOrNothing fails one of many changes of several kinds. Afterwards the objects must
// be the same as before.
func TestAllOrNothing(t *testing.T) {
	t.Parallel()
	rnd := testenv.Random(t)
	for round := range 30 {
		a, s := newStore(t)
		var held []allocator.Op
		for i := range 60 {
			held = append(held, allocator.Op{Claim: allocator.Claim{Key: storetest.Key(i), Owner: "old", Token: 1, Expires: time.Now().UTC()}})
		}
		versions, err := s.Commit(t.Context(), held[:40])
		testenv.NoError(t, err)
		before := describe(a.addresses())
		ops := make([]allocator.Op, len(held))
		for i := range ops {
			ops[i] = held[i]
			if i >= len(versions) {
				continue
			}
			ops[i].Claim.Version = versions[i]
			switch i % 3 {
			case 0:
				ops[i].Claim.Expires = time.Time{}
			case 1:
				ops[i].Claim.Owner = "new"
			default:
				ops[i].Delete = true
			}
		}
		ops[rnd.IntN(len(ops))].Claim.Version = 1
		if _, err := s.Commit(t.Context(), ops); !errors.Is(err, allocator.ErrConflict) {
			t.Errorf("round %d: got error %v, want %v", round, err, allocator.ErrConflict)
		}
		if diff := cmp.Diff(before, describe(a.addresses())); diff != "" {
			t.Fatalf("round %d: objects after a failure (-want +got):\n%s", round, diff)
		}
	}
}
