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
)

// testClocks lets pools whose clocks are an hour apart reserve keys. What none of them binds
// ends soon, and nobody gets what another one has bound.
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
		if err != nil {
			t.Fatal(err)
		}
		claims, err := p.Reserve(ctx, allocator.Owner(fmt.Sprintf("services/default/s%d", i)), allocator.Request{Kind: allocator.IPv4, Count: 4})
		if err != nil {
			t.Fatal(err)
		}
		pools, reserved = append(pools, p), append(reserved, claims)
	}
	stop := running(ctx, pools[:2]...) // and the one whose clock is ahead frees nothing
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
	// Of two pools that free the same, one undoes what it has done of it, and some stores
	// show that. One alone has nothing to undo.
	defer running(ctx, pools[0])()
	wantOnlyBound(ctx, t, s, owners.Held())
	for i, p := range pools {
		if _, err := p.Bind(ctx, reserved[i][2:]...); !errors.Is(err, allocator.ErrExpired) {
			t.Errorf("binding what has ended: got error %v, want %v", err, allocator.ErrExpired)
		}
	}
}

// running has pools run until the function that it gives is called.
func running(ctx context.Context, pools ...*allocator.Pool) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, p := range pools {
		all.Go(func() { _ = p.Run(ctx) }) // It ends with its context.
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// wantOnlyBound waits until a store holds what is bound, and nothing else.
func wantOnlyBound(ctx context.Context, t *testing.T, s allocator.Store, want map[allocator.Key]allocator.Owner) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		state, err := s.Load(ctx)
		if err != nil {
			t.Fatalf("the store holds more than %v: %v", want, err)
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
