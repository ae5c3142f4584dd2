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
