package allocator

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testenv"
)

// filler allocates the keys of a range and records which it has.
type filler struct {
	r    *Range
	seen []bool
}

// next allocates a key that it does not have yet, and returns its offset.
func (f *filler) next(t *testing.T) uint64 {
	t.Helper()
	key, err := f.r.AllocateNext("me")
	testenv.NoError(t, err)
	i, _ := f.r.Offset(key)
	if f.seen[i] {
		t.Fatalf("%v was allocated twice", key)
	}
	f.seen[i] = true
	return i
}

// replace frees the key at an offset, and allocates it again by name or as the only free
// key. The key may be one that was chosen ahead.
func (f *filler) replace(t *testing.T, i uint64, byName bool) {
	t.Helper()
	key := f.r.Key(i)
	testenv.NoError(t, f.r.Release("me", key))
	if byName {
		testenv.NoError(t, f.r.Allocate("me", key))
		return
	}
	f.seen[i] = false
	if got := f.next(t); got != i {
		t.Fatalf("offset: got %d, want %d, the only free one", got, i)
	}
}

func mustRange(t *testing.T, text string) *Range {
	t.Helper()
	c, err := ParseConfig(text)
	testenv.NoError(t, err)
	r, err := NewRange(c)
	testenv.NoError(t, err)
	return r
}

// TestWideRange allocates all keys of a range that chooses keys ahead. Each key must be
// allocated once, those of the lower band last.
func TestWideRange(t *testing.T) {
	r := mustRange(t, "10.0.0.0/13")
	n, band := r.core.shape.n, r.core.shape.band
	if n < wide {
		t.Fatalf("keys of the range: got %d, want at least %d", n, wide)
	}
	f := &filler{r: r, seen: make([]bool, n)}
	for range n - band {
		if i := f.next(t); i < band {
			t.Fatalf("got offset %d of the lower band, want one of the upper band, which has free keys", i)
		}
	}
	rnd := testenv.Random(t)
	for range 1000 {
		f.replace(t, band+rnd.Uint64N(n-band), rnd.IntN(2) == 0)
	}
	for range band {
		if i := f.next(t); i >= band {
			t.Fatalf("got offset %d of the upper band, want one of the lower band", i)
		}
	}
	if key, err := r.AllocateNext("me"); err == nil {
		t.Errorf("a full range: got %v, want an error", key)
	}
}

// TestNamesAreFreed checks that a range that was full does not keep the names of owners
// that have no key any more.
func TestNamesAreFreed(t *testing.T) {
	r := mustRange(t, "10.96.0.0/16")
	keys, err := r.AllocateN("me", 60_000)
	testenv.NoError(t, err)
	for _, k := range keys {
		testenv.NoError(t, r.Release("me", k))
	}
	d, ok := r.core.table.(*dense)
	if !ok {
		t.Fatalf("table: got %T, want *dense", r.core.table)
	}
	if len(d.names.chunks) != 1 || len(d.names.free) != 0 {
		t.Errorf("chunks and free numbers: got %d and %d, want one and none", len(d.names.chunks), len(d.names.free))
	}
	if allocs := testing.AllocsPerRun(100, func() {
		k, err := r.AllocateNext("me")
		if err == nil {
			err = r.Release("me", k)
		}
		if err != nil {
			t.Error(err)
		}
	}); allocs != 0 {
		t.Errorf("memory allocations of a pair: got %v, want none", allocs)
	}
}
