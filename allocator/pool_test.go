package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// configs parses ranges in canonical form; "!" at the end makes a range draining.
func configs(t testing.TB, texts ...string) []allocator.Config {
	t.Helper()
	var all []allocator.Config
	for _, text := range texts {
		draining := text[len(text)-1] == '!'
		if draining {
			text = text[:len(text)-1]
		}
		c, err := allocator.ParseConfig(text)
		testenv.NoError(t, err)
		c.Draining = draining
		all = append(all, c)
	}
	return all
}

func newMemory() *allocator.Memory { return allocator.NewMemory(allocator.State{}, nil) }

func newPool(t testing.TB, s allocator.Store, ranges ...string) *allocator.Pool {
	t.Helper()
	p, err := allocator.NewPool(s, allocator.PoolOptions{Ranges: configs(t, ranges...)})
	testenv.NoError(t, err)
	return p
}

func next(kind allocator.Kind) allocator.Request { return allocator.Request{Kind: kind} }

func exactly(t testing.TB, text string) allocator.Request {
	return allocator.Request{Key: mustKey(t, text)}
}

func mustReserve(t testing.TB, p *allocator.Pool, owner allocator.Owner, requests ...allocator.Request) []allocator.Claim {
	t.Helper()
	claims, err := p.Reserve(t.Context(), owner, requests...)
	if err != nil {
		t.Fatalf("Reserve for %s: %v", owner, err)
	}
	return claims
}

func TestReserveBindRelease(t *testing.T) {
	store := newMemory()
	p := newPool(t, store, "10.96.0.0/24", "fd00::/64", "30000-32767")
	claims := mustReserve(t, p, "web", exactly(t, "10.96.0.10"), next(allocator.IPv6), allocator.Request{Kind: allocator.Port, Count: 2})
	if len(claims) != 4 || claims[0].Key != mustKey(t, "10.96.0.10") || claims[1].Key.Kind() != allocator.IPv6 {
		t.Fatalf("got %v, want the address, an IPv6 address and two ports", claims)
	}
	for _, c := range claims {
		if c.IsBound() || c.Owner != "web" {
			t.Errorf("got claim %+v, want a reservation of web", c)
		}
	}
	bound, err := p.Bind(t.Context(), claims...)
	testenv.NoError(t, err)
	again, err := p.Bind(t.Context(), claims...)
	if diff := cmp.Diff(fmt.Sprint(bound), fmt.Sprint(again)); err != nil || diff != "" {
		t.Errorf("binding again: got error %v, claims (-want +got):\n%s", err, diff)
	}
	if c, ok := p.Lookup(mustKey(t, "10.96.0.10")); !ok || !c.IsBound() || c.Owner != "web" {
		t.Errorf("Lookup: got %+v, %t", c, ok)
	}
	checkRelease(t, p, store, claims)
}

// checkRelease releases the reservations twice; they still name the bound allocations.
func checkRelease(t *testing.T, p *allocator.Pool, store allocator.Store, claims []allocator.Claim) {
	t.Helper()
	for range 2 {
		testenv.NoError(t, p.Release(t.Context(), claims...))
	}
	state, err := store.Load(t.Context())
	if err != nil || len(state.Claims) != 0 || len(p.Claims()) != 0 {
		t.Errorf("claims after the release: got %v in the store, %v in the pool, error %v, want none", state.Claims, p.Claims(), err)
	}
}

func TestTransactionIsAllOrNothing(t *testing.T) {
	p := newPool(t, newMemory(), "10.96.0.0/29", "fd00::/64", "30000-30003")
	mustReserve(t, p, "db", exactly(t, "30001"))
	before := fmt.Sprint(p.Claims(), p.Ranges())
	for _, last := range []allocator.Request{
		exactly(t, "30001"), {Kind: allocator.Port, Count: 4}, exactly(t, "10.97.0.1"), {Kind: allocator.IPv4, Count: 6},
	} {
		_, err := p.Reserve(t.Context(), "web", next(allocator.IPv4), next(allocator.IPv6), next(allocator.Port), last)
		if err == nil {
			t.Errorf("Reserve with %v: got no error, want one", last)
		}
		if after := fmt.Sprint(p.Claims(), p.Ranges()); after != before {
			t.Errorf("after Reserve with %v failed (%v): got\n%s, want\n%s", last, err, after, before)
		}
	}
	_, err := p.Reserve(t.Context(), "web", next(allocator.IPv4), exactly(t, "30001"))
	held, ok := errors.AsType[*allocator.HeldError](err)
	if !ok || held.Owner != "db" || !errors.Is(err, allocator.ErrAllocated) {
		t.Errorf("got error %v, want one that db has the port", err)
	}
}

func TestSeveralRanges(t *testing.T) {
	p := newPool(t, newMemory(), "10.96.0.0/28", "10.97.0.0/28!", "10.98.0.0/28")
	var claims []allocator.Claim
	for range 28 {
		claims = append(claims, mustReserve(t, p, "web", next(allocator.IPv4))...)
	}
	for _, c := range claims {
		if netip.MustParsePrefix("10.97.0.0/28").Contains(c.Key.Addr()) {
			t.Errorf("%v was allocated from a draining range", c.Key)
		}
	}
	if _, err := p.Reserve(t.Context(), "web", next(allocator.IPv4)); !errors.Is(err, allocator.ErrFull) {
		t.Errorf("got error %v, want %v", err, allocator.ErrFull)
	}
	if _, err := p.Reserve(t.Context(), "web", exactly(t, "10.97.0.1")); !errors.Is(err, allocator.ErrNotInRange) {
		t.Errorf("an address of the draining range: got error %v, want %v", err, allocator.ErrNotInRange)
	}
	// The addresses of a deleted range stay allocated.
	testenv.NoError(t, p.SetRanges(configs(t, "10.97.0.0/28", "10.98.0.0/28!")...))
	if err := p.Release(t.Context(), claims...); err != nil {
		t.Errorf("releasing addresses of deleted and draining ranges: %v", err)
	}
	if len(p.Claims()) != 0 {
		t.Errorf("left over: %v", p.Claims())
	}
	// A range that is given twice is draining only if both are.
	testenv.NoError(t, p.SetRanges(configs(t, "10.97.0.0/28!", "10.97.0.0/28")...))
	mustReserve(t, p, "web", exactly(t, "10.97.0.1"))
}

func TestOverlapsShareAllocatedKeys(t *testing.T) {
	p := newPool(t, newMemory(), "10.96.0.0/24", "10.96.0.0/28")
	// The broadcast address of the inner range is an ordinary one of the outer.
	mustReserve(t, p, "web", exactly(t, "10.96.0.15"))
	seen := map[allocator.Key]bool{mustKey(t, "10.96.0.15"): true}
	for range 253 {
		c := mustReserve(t, p, "web", next(allocator.IPv4))[0]
		if seen[c.Key] {
			t.Fatalf("%v was allocated twice", c.Key)
		}
		seen[c.Key] = true
	}
	for _, r := range p.Ranges() {
		if r.Stats.Free() != 0 {
			t.Errorf("%v has %d free addresses, want none", r.Config, r.Stats.Free())
		}
	}
}

// TestPoolsShareAStore checks that a pool that has not read the changes of another one
// still allocates free keys, and no allocated one.
func TestPoolsShareAStore(t *testing.T) {
	store := newMemory()
	a, b := newPool(t, store, "10.96.0.0/28"), newPool(t, store, "10.96.0.0/28")
	for _, p := range []*allocator.Pool{a, b} {
		testenv.NoError(t, p.Sync(t.Context()))
	}
	all := mustReserve(t, a, "a", allocator.Request{Kind: allocator.IPv4, Count: 14})
	if _, err := b.Reserve(t.Context(), "b", next(allocator.IPv4)); !errors.Is(err, allocator.ErrFull) {
		t.Errorf("b in a full range: got error %v, want %v", err, allocator.ErrFull)
	}
	testenv.NoError(t, a.Release(t.Context(), all[:2]...))
	// In b's view the range is still full, and the address allocated.
	mustReserve(t, b, "b", next(allocator.IPv4))
	testenv.NoError(t, a.Release(t.Context(), all[5]))
	mustReserve(t, b, "b", allocator.Request{Key: all[5].Key})
}

// TestOutdatedKeysAreRead has a pool in whose outdated view all keys are allocated. It
// must read every requested key, not only the first, before it fails.
func TestOutdatedKeysAreRead(t *testing.T) {
	for name, requests := range map[string][]allocator.Request{
		"two by name":     {exactly(t, "30001"), exactly(t, "30003")},
		"by name and any": {exactly(t, "30002"), {Kind: allocator.Port, Count: 3}},
	} {
		store := newMemory()
		p, other := newPool(t, store, "30000-30003"), newPool(t, store, "30000-30003")
		taken := mustReserve(t, other, "early", allocator.Request{Kind: allocator.Port, Count: 4})
		testenv.NoError(t, p.Sync(t.Context()))
		mustRelease(t, other, taken...)
		if claims, err := p.Reserve(t.Context(), "late", requests...); err != nil {
			t.Errorf("%s: got %v, error %v, want all keys, which are free", name, claims, err)
		}
	}
}

// TestManyKeysAmongMany has a pool that has not read 2000 claims of another one and
// requests many keys. It must not learn of the claims one conflict at a time.
func TestManyKeysAmongMany(t *testing.T) {
	store := newMemory()
	late, early := newPool(t, store, "30000-32767"), newPool(t, store, "30000-32767")
	testenv.NoError(t, late.Sync(t.Context()))
	mustReserve(t, early, "early", allocator.Request{Kind: allocator.Port, Count: 2000})
	mustReserve(t, late, "late", allocator.Request{Kind: allocator.Port, Count: 250})
}

func TestExpiredReservationIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		a, b := newPool(t, store, "10.96.0.0/30"), newPool(t, store, "10.96.0.0/30")
		one := mustReserve(t, a, "a", exactly(t, "10.96.0.1"))
		two := mustReserve(t, a, "a", exactly(t, "10.96.0.2"))
		if _, err := b.Reserve(t.Context(), "b", exactly(t, "10.96.0.1")); !errors.Is(err, allocator.ErrAllocated) {
			t.Errorf("before the TTL: got error %v, want %v", err, allocator.ErrAllocated)
		}
		time.Sleep(allocator.DefaultTTL)
		mustReserve(t, b, "b", exactly(t, "10.96.0.1"))
		mustReserve(t, b, "b", next(allocator.IPv4))
		for _, late := range [][]allocator.Claim{one, two} {
			_, err := a.Bind(t.Context(), late...)
			held, ok := errors.AsType[*allocator.HeldError](err)
			if !errors.Is(err, allocator.ErrExpired) || !ok || held.Owner != "b" {
				t.Errorf("binding too late: got error %v, want ErrExpired that names the owner b", err)
			}
			if err := a.Release(t.Context(), late...); err != nil {
				t.Errorf("releasing too late: %v", err)
			}
		}
		if got := len(b.Claims()); got != 2 {
			t.Errorf("addresses in use after late releases: got %d, want the 2 of b", got)
		}
	})
}

func TestRunWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newCounting()
		a, b := newPool(t, store, "10.96.0.0/24"), newPool(t, store, "10.96.0.0/24")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { b.Run(ctx); close(done) }()
		kept, err := a.Allocate(t.Context(), "kept", next(allocator.IPv4))
		testenv.NoError(t, err)
		mustReserve(t, a, "lost", next(allocator.IPv4))
		synctest.Wait()
		if got := len(b.Claims()); got != 2 {
			t.Errorf("b knows %d claims, want 2", got)
		}
		time.Sleep(2 * allocator.DefaultTTL)
		testenv.Same(t, fmt.Sprint(kept), fmt.Sprint(b.Claims()), "after the TTL")
		mustRelease(t, a, kept...)
		synctest.Wait()
		if got := b.Claims(); len(got) > 0 || store.calls["load"] != 2 {
			t.Errorf("after the release: b knows %v, and both pools have read the store %d times, want none and once each", got, store.calls["load"])
		}
		cancel()
		<-done
	})
}

func TestInvalidRequests(t *testing.T) {
	p := newPool(t, newMemory(), "10.96.0.0/24")
	for name, q := range map[string]allocator.Request{
		"nothing": {}, "negative": {Kind: allocator.IPv4, Count: -1}, "unknown kind": {Kind: 9},
		"a key and more":   {Key: mustKey(t, "10.96.0.1"), Count: 2},
		"a key of another": {Key: mustKey(t, "10.96.0.1"), Kind: allocator.IPv6},
	} {
		if _, err := p.Reserve(t.Context(), "me", q); !errors.Is(err, allocator.ErrInvalid) {
			t.Errorf("%s: got error %v, want %v", name, err, allocator.ErrInvalid)
		}
	}
}
