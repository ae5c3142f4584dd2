package kubestore_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	clienttesting "k8s.io/client-go/testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/storetest"
)

// TestUndoAfterCancel checks that a commit whose context has ended still undoes its changes.
func TestUndoAfterCancel(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a, s := newStore(t)
	first, last := storetest.Key(1), storetest.Key(2)
	a.failSecond(first, last, func(int) (request, reply bool) { return false, false })
	await := a.wait
	a.wait = func(name string) {
		if await(name); name == last.String() {
			cancel()
		}
	}
	_, err := s.Commit(ctx, []allocator.Op{
		{Claim: allocator.Claim{Key: first, Owner: "me", Token: 1}}, {Claim: allocator.Claim{Key: last, Owner: "me", Token: 1}},
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
	if left := a.addresses(); len(left) != 0 {
		t.Errorf("objects: got %v, want none", left)
	}
}

// TestStopsAfterAFailure checks that a commit starts no more writes after one has failed.
func TestStopsAfterAFailure(t *testing.T) {
	t.Parallel()
	const atOnce = 8
	a, s := newStore(t)
	var ops []allocator.Op
	for i := range 10 * atOnce {
		a.put(t, "ipaddresses", foreign(storetest.Key(i).String(), "web"))
		ops = append(ops, allocator.Op{Claim: allocator.Claim{Key: storetest.Key(i), Owner: "me", Token: 1}})
	}
	var mu sync.Mutex
	created := 0
	a.before = func(action clienttesting.Action) {
		mu.Lock()
		defer mu.Unlock()
		if action.GetVerb() == "create" {
			created++
		}
	}
	if _, err := s.Commit(t.Context(), ops); !errors.Is(err, allocator.ErrConflict) {
		t.Errorf("got error %v, want %v", err, allocator.ErrConflict)
	}
	if created < 1 || created > atOnce {
		t.Errorf("create requests: got %d, want 1 to %d, the number in flight", created, atOnce)
	}
}
