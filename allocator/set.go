package allocator

import (
	"math"
	"math/bits"
	"slices"
)

// set is a set of numbers below 2^64 - 1. Each level is a bitmap that leaves out the words
// without a bit; above the first level, a bit says that the word below it is full. So the time
// of each method grows with the number of levels, one for each factor of 64, and the memory
// with the number of members.
type set struct{ levels []map[uint64]uint64 }

// full is a word with all bits.
const full = math.MaxUint64

// newSet makes an empty set of numbers below n.
func newSet(n uint64) set {
	s := set{levels: []map[uint64]uint64{{}}}
	for n > 64 {
		n = (n-1)/64 + 1
		s.levels = append(s.levels, map[uint64]uint64{})
	}
	return s
}

func (s set) has(i uint64) bool { return s.levels[0][i/64]>>(i%64)&1 == 1 }

// add adds a number that is not a member.
func (s set) add(i uint64) {
	for _, level := range s.levels {
		level[i/64] |= 1 << (i % 64)
		if level[i/64] != full {
			return
		}
		i /= 64
	}
}

// remove removes a member.
func (s set) remove(i uint64) {
	for _, level := range s.levels {
		was := level[i/64]
		if level[i/64] = was &^ (1 << (i % 64)); level[i/64] == 0 {
			delete(level, i/64)
		}
		if was != full {
			return
		}
		i /= 64
	}
}

// next returns the first number from i on that is not a member. It is beyond the range of the
// set if all are.
func (s set) next(i uint64) uint64 {
	for l, level := range s.levels {
		if gaps := ^level[i/64] >> (i % 64); gaps != 0 {
			i += uint64(bits.TrailingZeros64(gaps))
			for _, below := range slices.Backward(s.levels[:l]) {
				i = i*64 + uint64(bits.TrailingZeros64(^below[i]))
			}
			return i
		}
		i = i/64 + 1
	}
	return full
}
