package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// testClocks has pools whose clocks are an hour apart. Reservations that are not bound must
// end soon, and no pool may get a key that another one has bound.
func testClocks(t *testing.T, s allocator.Store) {
	const ttl = 2 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	owners := NewOwners(t)
	prefix := netip.PrefixFrom(Key(0).Addr(), 28)
	var pools []*allocator.Pool
	var reserved [][]allocator.Claim
	for i, ahead := range []time.Duration{-time.Hour, 0, time.Hour} {
		p, err := allocator.NewPool(s, allocator.PoolOptions{
			Ranges: []allocator.Config{{Prefix: prefix}}, TTL: ttl,
			Now: func() time.Time { return time.Now().Add(ahead) },
		})
		testenv.NoError(t, err)
		claims, err := p.Reserve(ctx, allocator.Owner(fmt.Sprintf("services/default/s%d", i)), allocator.Request{Kind: allocator.IPv4, Count: 4})
		testenv.NoError(t, err)
		pools, reserved = append(pools, p), append(reserved, claims)
	}
	stop := running(ctx, pools[:2]...) // The pool whose clock is ahead must not free anything.
	defer stop()
	for i, p := range pools {
		bound, err := p.Bind(ctx, reserved[i][:2]...)
		switch {
		case err == nil:
			owners.Bound(bound)
		case !errors.Is(err, allocator.ErrExpired):
			t.Fatal(err)
		}
	}
	owners.WantBindings(1)
	wantOnlyBound(ctx, t, s, owners.Held())
	stop()
	// If two pools free the same claims, one of them undoes its changes, and some stores show
	// the claims in between. A single pool has nothing to undo.
	defer running(ctx, pools[0])()
	wantOnlyBound(ctx, t, s, owners.Held())
	for i, p := range pools {
		if _, err := p.Bind(ctx, reserved[i][2:]...); !errors.Is(err, allocator.ErrExpired) {
			t.Errorf("binding a reservation that has ended: got error %v, want %v", err, allocator.ErrExpired)
		}
	}
}

// running runs pools until the caller calls stop.
func running(ctx context.Context, pools ...*allocator.Pool) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, p := range pools {
		all.Go(func() { p.Run(ctx) })
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// wantOnlyBound waits until a store has only the claims that are bound.
func wantOnlyBound(ctx context.Context, t *testing.T, s allocator.Store, want map[allocator.Key]allocator.Owner) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		state, err := s.Load(ctx)
		if err != nil {
			t.Fatalf("waiting until the store holds only %v: %v", want, err)
		}
		held := map[allocator.Key]allocator.Owner{}
		for _, c := range state.Claims {
			held[c.Key] = c.Owner
		}
		if maps.Equal(held, want) {
			return
		}
		<-ticker.C
	}
}
