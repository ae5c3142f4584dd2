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

// naive is the model of a range: the allocated keys and their owners.
type naive struct {
	r    *allocator.Range
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
		for _, excluding := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/excluding=%t", text, excluding), func(t *testing.T) {
				rnd := testenv.Random(t)
				m := &naive{held: map[allocator.Key]allocator.Owner{}}
				m.r = newRange(t, text, func(c *allocator.Config) {
					c.Source = rand.NewPCG(rnd.Uint64(), 0)
					if excluding {
						c.Exclude = excludeSome(t, rnd, text)
					}
				})
				for range 3000 {
					m.step(t, rnd)
				}
				m.compare(t)
			})
		}
	}
}

// excludeSome returns a few small blocks of a range.
func excludeSome(t *testing.T, rnd *rand.Rand, text string) []allocator.Block {
	r := newRange(t, text)
	var blocks []allocator.Block
	for range 3 {
		first := rnd.Uint64N(min(r.Stats().Size, 1<<16))
		last := min(first+rnd.Uint64N(100), r.Stats().Size-1)
		blocks = append(blocks, allocator.Block{First: r.Key(first), Last: r.Key(last)})
	}
	return blocks
}

func (m *naive) step(t *testing.T, rnd *rand.Rand) {
	t.Helper()
	owner := allocator.Owner(fmt.Sprint("owner-", rnd.IntN(3)))
	// Half of the steps allocate, so that small ranges become full.
	switch rnd.IntN(8) {
	case 0, 1, 2, 3:
		key, err := m.r.AllocateNext(owner)
		m.took(t, owner, []allocator.Key{key}, 1, err)
	case 4:
		n := rnd.IntN(20)
		keys, err := m.r.AllocateN(owner, n)
		m.took(t, owner, keys, n, err)
	case 5:
		m.allocate(t, owner, m.r.Key(rnd.Uint64N(min(300_000-70, m.r.Stats().Size)+70)))
	case 6, 7:
		m.release(t, owner, m.someKey(rnd))
	}
	if got, want := m.r.Stats().Used, uint64(len(m.held)); got != want {
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
func (m *naive) took(t *testing.T, owner allocator.Owner, keys []allocator.Key, want int, err error) {
	t.Helper()
	if s := m.r.Stats(); errors.Is(err, allocator.ErrFull) {
		if free := s.Size - uint64(len(m.held)); free >= uint64(want) {
			t.Fatalf("allocating %d keys: got %v, want them: %d are free", want, err, free)
		}
		return
	}
	if err != nil || len(keys) != want {
		t.Fatalf("got %v, error %v, want %d keys", keys, err, want)
	}
	for _, k := range keys {
		if _, ok := m.r.Offset(k); !ok {
			t.Fatalf("got key %v, want one of the range", k)
		}
		if holder, held := m.held[k]; held {
			t.Fatalf("%v was allocated to %s, but %s has it", k, owner, holder)
		}
		m.hold(k, owner)
	}
}

func (m *naive) hold(k allocator.Key, owner allocator.Owner) {
	m.held[k] = owner
	m.once = append(m.once, k)
}

func (m *naive) allocate(t *testing.T, owner allocator.Owner, key allocator.Key) {
	t.Helper()
	err := m.r.Allocate(owner, key)
	holder, held := m.held[key]
	var got *allocator.HeldError
	switch {
	case key == (allocator.Key{}):
		if !errors.Is(err, allocator.ErrNotInRange) {
			t.Fatalf("allocating no key: got error %v, want %v", err, allocator.ErrNotInRange)
		}
	case held:
		if !errors.Is(err, allocator.ErrAllocated) || !errors.As(err, &got) || got.Owner != holder || got.Key != key {
			t.Fatalf("allocating %v: got error %v, want one that %s has it", key, err, holder)
		}
	case err != nil:
		t.Fatalf("allocating %v, which is free: %v", key, err)
	default:
		m.hold(key, owner)
	}
}

func (m *naive) release(t *testing.T, owner allocator.Owner, key allocator.Key) {
	t.Helper()
	err := m.r.Release(owner, key)
	holder, held := m.held[key]
	var got *allocator.HeldError
	switch {
	case held && holder != owner:
		if !errors.Is(err, allocator.ErrNotOwner) || !errors.As(err, &got) || got.Owner != holder {
			t.Fatalf("%s releases %v of %s: got error %v, want %v", owner, key, holder, err, allocator.ErrNotOwner)
		}
	case err != nil:
		t.Fatalf("%s releases %v: got error %v, want none", owner, key, err)
	default:
		delete(m.held, key)
	}
}

func (m *naive) compare(t *testing.T) {
	t.Helper()
	got := maps.Collect(m.r.All())
	if !maps.Equal(m.held, got) { // cmp is slow
		t.Errorf("all keys (-want +got):\n%s", cmp.Diff(m.held, got, cmp.Comparer(func(a, b allocator.Key) bool { return a == b })))
	}
	for k, owner := range m.held {
		if got, ok := m.r.Lookup(k); !ok || got != owner {
			t.Errorf("Lookup(%v): got %q, %t, want %q", k, got, ok, owner)
		}
	}
	var order []allocator.Key
	for k := range m.r.All() {
		order = append(order, k)
	}
	if !slices.IsSortedFunc(order, allocator.Key.Compare) {
		t.Error("All: got keys out of order, want them in order")
	}
}
