package allocator

import (
	"math"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestSetAgainstModel compares a set with a naive one, at sizes around multiples of a word. The
// set has 2^64 - 1 numbers at most; of large sets, the numbers at both ends are tried.
func TestSetAgainstModel(t *testing.T) {
	const most = 600
	for _, n := range []uint64{1, 2, 63, 64, 65, 127, 4095, 4096, 4097, 262_143, 262_144, 262_145, 1 << 40, math.MaxUint64} {
		rnd := testenv.Random(t)
		s, members := newSet(n), map[uint64]bool{}
		for step := range 6000 {
			i := rnd.Uint64N(min(n, most))
			if n > most && rnd.IntN(2) == 0 {
				i = n - 1 - i
			}
			isEnding := step >= 3000 // the set becomes nearly full before, and empty after
			switch {
			case members[i] && (isEnding || rnd.IntN(16) == 0):
				s.remove(i)
				delete(members, i)
			case !members[i] && !isEnding:
				s.add(i)
				members[i] = true
			}
			if s.has(i) != members[i] {
				t.Fatalf("%d numbers: has(%d): got %t, want %t", n, i, s.has(i), members[i])
			}
			if got, want := s.next(i), firstGap(members, i); got != want && (got < n || want < n) {
				t.Fatalf("%d numbers: next(%d): got %d, want %d", n, i, got, want)
			}
		}
		for i := range members {
			s.remove(i)
		}
		wantNoWords(t, n, s)
	}
}

func firstGap(members map[uint64]bool, i uint64) uint64 {
	for members[i] {
		i++
	}
	return i
}

// wantNoWords checks that an empty set needs no memory.
func wantNoWords(t *testing.T, n uint64, s set) {
	t.Helper()
	for l, level := range s.levels {
		if len(level) > 0 {
			t.Errorf("%d numbers: words of level %d of an empty set: got %v, want none", n, l, level)
		}
	}
}

// TestFullWideRange fills a range of several levels, frees some keys and allocates them
// again: each key is found once, and the keys of the lower band last.
func TestFullWideRange(t *testing.T) {
	c, err := ParseConfig("10.0.0.0/16")
	testenv.NoError(t, err)
	r, err := NewRange(c)
	testenv.NoError(t, err)
	s := r.Stats()
	upper, err := r.AllocateN("me", int(s.Size-s.BandSize))
	if err != nil || r.Stats().BandUsed != 0 {
		t.Fatalf("filling the upper band: got %+v, error %v, want an empty lower band", r.Stats(), err)
	}
	rnd := testenv.Random(t)
	for range 1000 {
		key := upper[rnd.IntN(len(upper))]
		testenv.NoError(t, r.Release("me", key))
		if got, err := r.AllocateNext("me"); err != nil || got != key {
			t.Fatalf("got %v, error %v, want %v, the only free key of the upper band", got, err, key)
		}
	}
	if _, err := r.AllocateN("me", int(s.BandSize)); err != nil {
		t.Errorf("filling the lower band: %v", err)
	}
	if key, err := r.AllocateNext("me"); err == nil {
		t.Errorf("a full range: got %v, want an error", key)
	}
}
