package allocator_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// naive is the model of a pool with one range: the allocated keys and their owners.
type naive struct {
	r    *allocator.Range
	p    *allocator.Pool
	kind allocator.Kind
	held map[allocator.Key]allocator.Owner
	once []allocator.Key // all keys that were ever allocated
}

func modelled() []string {
	return []string{
		"10.0.0.0/30", "10.0.0.0/28", "10.0.0.0/27", "10.0.0.0/26", "10.0.0.0/24", "10.0.0.0/20",
		"10.0.0.0/14", "10.0.0.0/12", "10.0.0.0/7", "fd00::/126", "fd00::/118", "fd00::/104", "fd00::/103", "fd00::/64", "30000-32767", "1-65535",
	}
}

func TestRangeAgainstModel(t *testing.T) {
	for _, text := range modelled() {
		t.Run(text, func(t *testing.T) {
			rnd := testenv.Random(t)
			c := config(t, text)
			r, err := allocator.NewRange(c)
			testenv.NoError(t, err)
			m := &naive{held: map[allocator.Key]allocator.Owner{}, kind: r.Key(0).Kind(), r: r, p: poolOf(t, c)}
			m.p.ChooseBy(rnd)
			for range testenv.Rounds(3000) {
				m.step(t, rnd)
			}
			m.compare(t)
		})
	}
}

func (m *naive) step(t *testing.T, rnd *rand.Rand) {
	t.Helper()
	owner := allocator.Owner(fmt.Sprint("owner-", rnd.IntN(3)))
	// Half of the steps allocate, so that small ranges become full.
	switch rnd.IntN(8) {
	case 0, 1, 2, 3, 4:
		n := 1 + max(0, rnd.IntN(100)-80)
		claims, err := m.p.Allocate(t.Context(), owner, allocator.Request{Kind: m.kind, Count: n})
		m.took(t, owner, claims, n, err)
	case 5:
		m.allocate(t, owner, m.r.Key(rnd.Uint64N(min(300_000-70, m.r.Size())+70)))
	case 6, 7:
		m.release(t, owner, m.someKey(rnd))
	}
	if got, want := m.p.Ranges()[0].Stats.Used, uint64(len(m.held)); got != want {
		t.Fatalf("used: got %d, want %d", got, want)
	}
}

func (m *naive) someKey(rnd *rand.Rand) allocator.Key {
	if len(m.once) == 0 || rnd.IntN(5) == 0 {
		return m.r.Key(rnd.Uint64N(300_000))
	}
	return m.once[rnd.IntN(len(m.once))]
}

// took checks a dynamic allocation: as many free keys as want, or ErrFull if the range
// has fewer.
func (m *naive) took(t *testing.T, owner allocator.Owner, claims []allocator.Claim, want int, err error) {
	t.Helper()
	if errors.Is(err, allocator.ErrFull) {
		if free := m.r.Size() - uint64(len(m.held)); free >= uint64(want) {
			t.Fatalf("allocating %d keys: got %v, want them: %d are free", want, err, free)
		}
		return
	}
	if err != nil || len(claims) != want {
		t.Fatalf("got %v, error %v, want %d keys", claims, err, want)
	}
	for _, c := range claims {
		if _, ok := m.r.Offset(c.Key); !ok {
			t.Fatalf("got key %v, want one of the range", c.Key)
		}
		if holder, held := m.held[c.Key]; held {
			t.Fatalf("%v was allocated to %s, but %s has it", c.Key, owner, holder)
		}
		m.hold(c.Key, owner)
	}
}

func (m *naive) hold(k allocator.Key, owner allocator.Owner) {
	m.held[k] = owner
	m.once = append(m.once, k)
}

func (m *naive) allocate(t *testing.T, owner allocator.Owner, key allocator.Key) {
	t.Helper()
	var want error
	switch _, isHeld := m.held[key]; {
	case key == (allocator.Key{}):
		want = allocator.ErrInvalid
	case isHeld:
		want = allocator.ErrAllocated
	}
	_, err := m.p.Allocate(t.Context(), owner, allocator.Request{Key: key})
	if m.wantError(t, key, err, want); err == nil {
		m.hold(key, owner)
	}
}

func (m *naive) release(t *testing.T, owner allocator.Owner, key allocator.Key) {
	t.Helper()
	var want error
	if holder, isHeld := m.held[key]; isHeld && holder != owner {
		want = allocator.ErrNotOwner
	}
	err := m.p.Release(t.Context(), allocator.Claim{Key: key, Owner: owner})
	if m.wantError(t, key, err, want); err == nil {
		delete(m.held, key)
	}
}

// wantError checks the error of a call for a key. It names the owner of the key, if it has one.
func (m *naive) wantError(t *testing.T, key allocator.Key, err, want error) {
	t.Helper()
	var got *allocator.HeldError
	holder, isHeld := m.held[key]
	switch {
	case !errors.Is(err, want):
		t.Fatalf("%v of %q: got error %v, want %v", key, holder, err, want)
	case want != nil && isHeld && (!errors.As(err, &got) || got.Owner != holder || got.Key != key):
		t.Fatalf("%v: got error %v, want one that %s has it", key, err, holder)
	}
}

func (m *naive) compare(t *testing.T) {
	t.Helper()
	got := map[allocator.Key]allocator.Owner{}
	for _, c := range m.p.Claims() {
		got[c.Key] = c.Owner
	}
	if !maps.Equal(m.held, got) { // cmp is slow
		t.Errorf("all keys (-want +got):\n%s", cmp.Diff(m.held, got, cmp.Comparer(func(a, b allocator.Key) bool { return a == b })))
	}
	if !slices.IsSortedFunc(m.p.Claims(), func(a, b allocator.Claim) int { return a.Key.Compare(b.Key) }) {
		t.Error("Claims: got keys out of order, want them in order")
	}
}
