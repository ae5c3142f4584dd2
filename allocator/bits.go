package allocator

import "math/bits"

// span is a closed interval of offsets.
type span struct{ first, last uint64 }

// bitmap has the free offsets below a limit. Level 0 has a bit for each offset; a
// bit of any other level says that the word below it is not zero. So next reads two
// words of each level at most, however full the map is. It needs 1.016 bits for each offset.
type bitmap struct{ levels [][]uint64 }

// newBitmap makes a map of n offsets, all free but those blocked.
func newBitmap(n uint64, blocked []span) bitmap {
	words := make([]uint64, max(1, (n+63)/64))
	fillOnes(words, n)
	for _, s := range blocked {
		clearSpan(words, s)
	}
	b := bitmap{levels: [][]uint64{words}}
	for len(words) > 1 {
		above := make([]uint64, (len(words)+63)/64)
		for i, w := range words {
			if w != 0 {
				above[i>>6] |= 1 << (i & 63)
			}
		}
		b.levels = append(b.levels, above)
		words = above
	}
	return b
}

func fillOnes(words []uint64, n uint64) {
	for i := range n / 64 {
		words[i] = ^uint64(0)
	}
	if rest := n % 64; rest != 0 {
		words[n/64] = 1<<rest - 1
	}
}

func clearSpan(words []uint64, s span) {
	for i := s.first; i <= s.last; {
		if i&63 == 0 && s.last-i >= 63 {
			words[i>>6] = 0
			i += 64
			continue
		}
		words[i>>6] &^= 1 << (i & 63)
		i++
	}
}

func (b bitmap) isFree(i uint64) bool { return b.levels[0][i>>6]>>(i&63)&1 == 1 }

// take marks a free offset as taken.
func (b bitmap) take(i uint64) {
	for _, level := range b.levels {
		w := &level[i>>6]
		*w &^= 1 << (i & 63)
		if *w != 0 {
			return
		}
		i >>= 6
	}
}

// put marks a taken offset as free.
func (b bitmap) put(i uint64) {
	for _, level := range b.levels {
		w := &level[i>>6]
		was := *w
		*w |= 1 << (i & 63)
		if was != 0 {
			return
		}
		i >>= 6
	}
}

// next returns the first free offset that is not less than i.
func (b bitmap) next(i uint64) (uint64, bool) {
	for l, level := range b.levels {
		word := i >> 6
		if word >= uint64(len(level)) {
			return 0, false
		}
		if w := level[word] >> (i & 63); w != 0 {
			return b.descend(l, i+uint64(bits.TrailingZeros64(w))), true
		}
		i = word + 1
	}
	return 0, false
}

// descend returns the first free offset below a bit of a level.
func (b bitmap) descend(l int, i uint64) uint64 {
	for l--; l >= 0; l-- {
		i = i<<6 + uint64(bits.TrailingZeros64(b.levels[l][i]))
	}
	return i
}
