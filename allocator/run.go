package allocator

import (
	"context"
	"sync"
	"time"

	"github.com/vipkit/vipkit/internal/pause"
)

// Bounds of the pause before the store is read again after an error.
const (
	minPause = 50 * time.Millisecond
	maxPause = 5 * time.Second
)

// Run watches the store and frees reservations that have ended, until ctx ends.
// A pool also works without Run; it then learns which keys other
// pools have freed only when it finds no free key.
//
// After an error Run reads the whole store again. The pause before that grows as long as
// watches fail soon, even if reading works, because reading the whole store is expensive.
func (p *Pool) Run(ctx context.Context) {
	var sweeping sync.WaitGroup
	sweeping.Go(func() { p.sweep(ctx) })
	defer sweeping.Wait()
	gap := minPause
	for ctx.Err() == nil {
		if err := p.Sync(ctx); err == nil {
			begin := time.Now()
			p.synced(p.follow(ctx))
			if time.Since(begin) >= maxPause {
				gap = minPause
			}
		}
		_ = pause.For(ctx, gap) // The loop ends with ctx.
		gap = min(2*gap, maxPause)
	}
}

// follow watches the store until the watch ends.
func (p *Pool) follow(ctx context.Context) error {
	p.mu.Lock()
	after := p.index.version
	p.mu.Unlock()
	for event, err := range p.store.Watch(ctx, after) {
		if err != nil {
			return err
		}
		p.mu.Lock()
		if event.Deleted {
			p.index.forget(event.Claim.Key, event.Claim.Version)
		} else {
			p.index.learn(event.Claim)
		}
		p.mu.Unlock()
	}
	return nil
}

// sweep frees reservations that have ended. It retries at the next interval.
func (p *Pool) sweep(ctx context.Context) {
	for pause.For(ctx, max(p.ttl/2, minPause)) == nil {
		if err := p.expire(ctx); err != nil {
			p.synced(err)
		}
	}
}

func (p *Pool) synced(err error) {
	if p.observer != nil && err != nil {
		p.observer.Synced(err)
	}
}
