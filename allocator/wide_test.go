package allocator

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testenv"
)

// filler takes the keys of a range and notes which it has.
type filler struct {
	r    *Range
	seen []bool
}

// next takes a key that was not yet given, and gives its offset.
func (f *filler) next(t *testing.T) uint64 {
	t.Helper()
	key, err := f.r.AllocateNext("me")
	if err != nil {
		t.Fatal(err)
	}
	i, _ := f.r.Offset(key)
	if f.seen[i] {
		t.Fatalf("%v was given twice", key)
	}
	f.seen[i] = true
	return i
}

// replace frees the key at an offset, and takes it again in one of two ways: it may
// be one that was chosen ahead.
func (f *filler) replace(t *testing.T, i uint64, byName bool) {
	t.Helper()
	key := f.r.Key(i)
	if err := f.r.Release("me", key); err != nil {
		t.Fatal(err)
	}
	if byName {
		if err := f.r.Allocate("me", key); err != nil {
			t.Fatal(err)
		}
		return
	}
	f.seen[i] = false
	if got := f.next(t); got != i {
		t.Fatalf("got offset %d, want the only free one, %d", got, i)
	}
}

func mustRange(t *testing.T, text string) *Range {
	t.Helper()
	c, err := ParseConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewRange(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestWideRange fills a range in which keys are chosen ahead, to the last one. Each
// key must be given once, those of the lower band last.
func TestWideRange(t *testing.T) {
	r := mustRange(t, "10.0.0.0/13")
	n, band := r.core.shape.n, r.core.shape.band
	if n < wide {
		t.Fatalf("%d keys are no wide range; the test shows nothing", n)
	}
	f := &filler{r: r, seen: make([]bool, n)}
	for range n - band {
		if i := f.next(t); i < band {
			t.Fatalf("offset %d of the lower band was given while the upper was free", i)
		}
	}
	rnd := testenv.Random(t)
	for range 1000 {
		f.replace(t, band+rnd.Uint64N(n-band), rnd.IntN(2) == 0)
	}
	for range band {
		if i := f.next(t); i >= band {
			t.Fatalf("offset %d of the upper band was given although it is full", i)
		}
	}
	if key, err := r.AllocateNext("me"); err == nil {
		t.Errorf("a full range gave %v", key)
	}
}

// TestNamesAreGivenUp wants a range that was full not to keep the names of owners that
// have gone.
func TestNamesAreGivenUp(t *testing.T) {
	r := mustRange(t, "10.96.0.0/16")
	keys, err := r.AllocateN("me", 60_000)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if err := r.Release("me", k); err != nil {
			t.Fatal(err)
		}
	}
	d, ok := r.core.table.(*dense)
	if !ok {
		t.Fatalf("the table is a %T", r.core.table)
	}
	if len(d.names.pages) != 1 || len(d.names.free) != 0 {
		t.Errorf("%d pages and %d free numbers are left, want one and none", len(d.names.pages), len(d.names.free))
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
		t.Errorf("a pair takes %v memory allocations, want none", allocs)
	}
}
