package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// lagging is a store that delays the replies to one kind of call after a call of hold.
type lagging struct {
	allocator.Store
	mu   sync.Mutex
	call string
	goOn chan struct{}
}

// hold delays the replies to a kind of call until the returned function is called.
func (l *lagging) hold(call string) (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	goOn := make(chan struct{})
	l.call, l.goOn = call, goOn
	return func() { close(goOn) }
}

func (l *lagging) wait(call string) {
	l.mu.Lock()
	goOn, waits := l.goOn, l.call == call
	l.mu.Unlock()
	if waits {
		<-goOn
	}
}

func (l *lagging) Load(ctx context.Context) (allocator.State, error) {
	state, err := l.Store.Load(ctx)
	l.wait("load")
	return state, err
}

func (l *lagging) Get(ctx context.Context, keys ...allocator.Key) (allocator.State, error) {
	state, err := l.Store.Get(ctx, keys...)
	l.wait("get")
	return state, err
}

func (l *lagging) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	versions, err := l.Store.Commit(ctx, ops)
	l.wait("commit")
	return versions, err
}

// TestLateRepliesRestoreNothing frees a key while a reply that still has its claim is in
// flight. The watch has reported the deletion, and will not report it again.
func TestLateRepliesRestoreNothing(t *testing.T) {
	for name, c := range map[string]struct {
		call string
		has  string // the owner of the key at first; empty for none
		act  func(t *testing.T, p *allocator.Pool, has []allocator.Claim) error
	}{
		"reading the store": {"load", "web", func(t *testing.T, p *allocator.Pool, _ []allocator.Claim) error { return p.Sync(t.Context()) }},
		"reading a key": {"get", "web", func(t *testing.T, p *allocator.Pool, has []allocator.Claim) error {
			err := p.Release(t.Context(), allocator.Claim{Key: has[0].Key, Owner: "db"})
			if errors.Is(err, allocator.ErrNotOwner) {
				return nil
			}
			return fmt.Errorf("got error %w, want %w", err, allocator.ErrNotOwner)
		}},
		"reserving": {"commit", "", func(t *testing.T, p *allocator.Pool, _ []allocator.Claim) error {
			_, err := p.Reserve(t.Context(), "web", exactly(t, "10.96.0.9"))
			return err
		}},
		"binding": {"commit", "web", func(t *testing.T, p *allocator.Pool, has []allocator.Claim) error {
			_, err := p.Bind(t.Context(), has...)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &lagging{Store: newMemory()}
				p, other := newPool(t, store, "10.96.0.0/24"), newPool(t, store.Store, "10.96.0.0/24")
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { p.Run(ctx) })
				var has []allocator.Claim
				if c.has != "" {
					has = mustReserve(t, other, "web", exactly(t, "10.96.0.9"))
				}
				synctest.Wait()
				release := store.hold(c.call)
				running.Go(func() {
					if err := c.act(t, p, has); err != nil {
						t.Error(err)
					}
				})
				synctest.Wait()
				mustRelease(t, other, allocator.Claim{Key: mustKey(t, "10.96.0.9"), Owner: "web"})
				synctest.Wait()
				release()
				synctest.Wait()
				if got, isHeld := p.Lookup(mustKey(t, "10.96.0.9")); isHeld || len(p.Claims()) != 0 {
					t.Errorf("keys in use: got %d and %+v, want none", len(p.Claims()), got)
				}
				cancel()
				running.Wait()
			})
		})
	}
}

// TestSyncWithoutVersions frees a key in another pool of a store whose states have no version.
// The pool must not keep the claim in its view.
func TestSyncWithoutVersions(t *testing.T) {
	store := versionless(newMemory())
	other, p := newPool(t, store, "10.96.0.0/29"), newPool(t, store, "10.96.0.0/29")
	claims := mustReserve(t, other, "other", allocator.Request{Kind: allocator.IPv4, Count: 6})
	testenv.NoError(t, p.Sync(t.Context()))
	mustRelease(t, other, claims[0])
	if got := mustReserve(t, p, "web", next(allocator.IPv4)); got[0].Key != claims[0].Key {
		t.Errorf("got %v, want the released %v", got[0].Key, claims[0].Key)
	}
}

// TestLateSyncWithoutVersions makes a claim while a reply without it is in flight. The pool
// must keep the claim.
func TestLateSyncWithoutVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &lagging{Store: newMemory()}
		p := newPool(t, versionless(store), "10.96.0.0/29")
		testenv.NoError(t, p.Sync(t.Context()))
		release, synced := store.hold("load"), make(chan error, 1)
		go func() { synced <- p.Sync(t.Context()) }()
		synctest.Wait()
		claims := mustReserve(t, p, "web", next(allocator.IPv4))
		release()
		testenv.NoError(t, <-synced)
		if got, ok := p.Lookup(claims[0].Key); !ok || got != claims[0] {
			t.Errorf("got %v, %t, want %v", got, ok, claims[0])
		}
	})
}

// TestSlowReplyUndoesNothing checks that a reply of the store does not undo what the pool
// itself has done while it waited.
func TestSlowReplyUndoesNothing(t *testing.T) {
	for _, isVersionless := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			lags := &lagging{Store: newMemory()}
			var store allocator.Store = lags
			if isVersionless {
				store = versionless(lags)
			}
			p := newPool(t, store, "10.96.0.0/24")
			old := mustReserve(t, p, "web", exactly(t, "10.96.0.9"))
			mustRelease(t, p, old...)
			release, done := lags.hold("get"), make(chan error, 1)
			go func() { done <- p.Release(t.Context(), old...) }() // Reads that the keys are free.
			synctest.Wait()
			mine := mustReserve(t, p, "db", exactly(t, "10.96.0.9"))
			release()
			testenv.NoError(t, <-done)
			if got, ok := p.Lookup(mine[0].Key); !ok || got != mine[0] {
				t.Errorf("without versions %t: Lookup: got %+v, %t, want %+v", isVersionless, got, ok, mine[0])
			}
		})
	}
}

// twice is a store that executes each commit twice, and returns the second result.
type twice struct{ *allocator.Memory }

func (s twice) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	if _, err := s.Memory.Commit(ctx, ops); err != nil {
		return nil, err
	}
	return s.Memory.Commit(ctx, ops)
}

// TestRepeatedChanges checks that a conflict with the pool's own change is no conflict:
// otherwise no caller would have the reservation, and the key would be lost until it ends.
func TestRepeatedChanges(t *testing.T) {
	store := twice{newMemory()}
	p := newPool(t, store, "10.96.0.0/24")
	claims := mustReserve(t, p, "web", next(allocator.IPv4))
	state, err := store.Load(t.Context())
	if err != nil || len(state.Claims) != 1 || state.Claims[0] != claims[0] {
		t.Fatalf("the store holds %v, error %v, want only %v", state.Claims, err, claims)
	}
	mustRelease(t, p, mustBind(t, p, claims...)...)
	if state, err := store.Load(t.Context()); err != nil || len(state.Claims) != 0 {
		t.Errorf("after the release the store holds %v, error %v, want nothing", state.Claims, err)
	}
}

// TestEmptyStateHasAVersion checks that a pool does not accept a state that is older than
// one it has read, even if that was empty because the last change was a deletion.
func TestEmptyStateHasAVersion(t *testing.T) {
	store := &altered{newMemory(), unaltered}
	p, other := newPool(t, store, "10.96.0.0/24"), newPool(t, store.Store, "10.96.0.0/24")
	claims := mustReserve(t, other, "web", exactly(t, "10.96.0.9"))
	before, err := store.Load(t.Context())
	testenv.NoError(t, err)
	mustRelease(t, other, claims...)
	testenv.NoError(t, p.Sync(t.Context()))
	gets := 0
	store.alter = func(now allocator.State) allocator.State {
		if gets++; gets == 1 {
			return before
		}
		return now
	}
	if err := p.Release(t.Context(), allocator.Claim{Key: claims[0].Key, Owner: "db"}); err != nil {
		t.Errorf("releasing a free key: %v", err)
	}
	if gets != 2 {
		t.Errorf("calls of Get: got %d, want two, as the first state is outdated", gets)
	}
}
