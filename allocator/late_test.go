package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/vipkit/vipkit/allocator"
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
				running.Go(func() { _ = p.Run(ctx) }) // It ends with its context.
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
				if got, isHeld := p.Lookup(mustKey(t, "10.96.0.9")); isHeld || p.Stats(allocator.IPv4).Used != 0 {
					t.Errorf("keys in use: got %d and %+v, want none", p.Stats(allocator.IPv4).Used, got)
				}
				cancel()
				running.Wait()
			})
		})
	}
}
