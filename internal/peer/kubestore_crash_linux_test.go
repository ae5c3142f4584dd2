package peer_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/peer/controlplane"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const crashTTL = 3 * time.Second

// TestAPIServerCrashes kills the API server while addresses are reserved, bound and
// released. No address may have two owners, and none may stay bound for an owner who has
// released it, except for owners whose last change has an unknown outcome.
func TestAPIServerCrashes(t *testing.T) {
	const clusterIPs = "10.99.0.0/24"
	cp := controlplane.Start(t, controlplane.Options{ServiceRange: clusterIPs})
	_, s := newStore(t, cp)
	r := &register{t: t, owners: map[netip.Addr]string{}}
	var doubtful sync.Map // owners
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var living sync.WaitGroup
	for worker := range 4 {
		p := newPoolTTL(t, s, clusterIPs)
		living.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				owner := fmt.Sprintf("example.com/gates/default/%d-%d", worker, i)
				if !r.live(p, owner) {
					doubtful.Store(allocator.Owner(owner), true)
				}
			}
		})
	}
	for range 2 {
		r.await(200)
		cp.Kill()
		cp.Restart()
	}
	r.await(200)
	stop()
	living.Wait()
	t.Logf("%d owners", r.ours)

	sweeper := newPoolTTL(t, s, clusterIPs)
	sweeping, end := context.WithTimeout(t.Context(), patience)
	defer end()
	var running sync.WaitGroup
	running.Go(func() { sweeper.Run(sweeping) })
	defer running.Wait()
	defer end()
	for again := time.NewTicker(100 * time.Millisecond); ; <-again.C {
		state, err := s.Load(sweeping)
		testenv.NoError(t, err)
		if !hasReservation(t, state, &doubtful) {
			again.Stop()
			return
		}
	}
}

func newPoolTTL(t *testing.T, s allocator.Store, prefix string) *allocator.Pool {
	t.Helper()
	p, err := allocator.NewPool(s, allocator.PoolOptions{
		Ranges: []allocator.Config{{Prefix: netip.MustParsePrefix(prefix)}}, TTL: crashTTL,
	})
	testenv.NoError(t, err)
	return p
}

// live reserves, binds and releases an address for one owner. It gives false if the outcome of
// its last change is unknown.
func (r *register) live(p *allocator.Pool, owner string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), crashTTL/2)
	defer cancel()
	claims, err := p.Reserve(ctx, allocator.Owner(owner), allocator.Request{Kind: allocator.IPv4})
	if err != nil {
		<-time.After(50 * time.Millisecond) // Do not retry in a busy loop.
		return true
	}
	if claims, err = p.Bind(ctx, claims...); err != nil {
		return false
	}
	address := claims[0].Key.Addr()
	r.taken(address, owner)
	r.freed(address)
	return p.Release(ctx, claims...) == nil
}

// await waits until our pools have allocated some more addresses.
func (r *register) await(more int) {
	r.t.Helper()
	count := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.ours
	}
	want := count() + more
	testenv.Eventually(r.t, patience, "our pools have allocated more addresses", func() error {
		if got := count(); got < want {
			return fmt.Errorf("got %d, want %d", got, want)
		}
		return nil
	})
}

// hasReservation reports whether the state has a reservation, and fails the test if it has a
// bound claim of an owner that has released it.
func hasReservation(t *testing.T, state allocator.State, doubtful *sync.Map) bool {
	t.Helper()
	has := false
	for _, c := range state.Claims {
		_, isDoubtful := doubtful.Load(c.Owner)
		switch {
		case !c.IsBound():
			has = true
		case !isDoubtful && c.Owner != "services/default/kubernetes":
			t.Errorf("%v is bound for %s, which has released it", c.Key, c.Owner)
		}
	}
	return has
}
