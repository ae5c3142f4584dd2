package allocator

import (
	"math/bits"
	"slices"
)

// chunkSize is how many entries are allocated at once.
const chunkSize = 256

// entry is a taken offset.
type entry struct {
	offset uint64
	owner  Owner
}

// sparse is the table of ranges that are too large for a bitmap, up to 2^64 offsets.
// The entries are in chunks without gaps; index finds them: a hash table with open
// addressing of entry numbers, from 1. An entry and its share of the index take 31 to
// 37 bytes.
type sparse struct {
	n       uint64
	blocked []span
	seed    uint64
	index   []uint32 // a power of two
	chunks  []*[chunkSize]entry
	count   int
}

const minIndex = 64

func newSparse(n uint64, blocked []span, seed uint64) *sparse {
	return &sparse{n: n, blocked: blocked, seed: seed, index: make([]uint32, minIndex)}
}

func (s *sparse) at(number uint32) *entry {
	i := number - 1
	return &s.chunks[i/chunkSize][i%chunkSize]
}

// home is the slot of the index where the search for an offset begins. Because of the
// seed, users who choose their addresses cannot choose collisions.
func (s *sparse) home(offset uint64) int {
	h := (offset ^ s.seed) * 0x9e3779b97f4a7c15
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	return int(h >> (64 - bits.TrailingZeros(uint(len(s.index)))))
}

// find returns the slot of an offset in the index, or the empty slot where it belongs.
func (s *sparse) find(offset uint64) (slot int, found bool) {
	for i := s.home(offset); ; i = (i + 1) & (len(s.index) - 1) {
		switch number := s.index[i]; {
		case number == 0:
			return i, false
		case s.at(number).offset == offset:
			return i, true
		}
	}
}

func (s *sparse) isFree(i uint64) bool {
	if _, found := s.find(i); found {
		return false
	}
	_, isBlocked := blockedAt(s.blocked, i)
	return !isBlocked
}

func (s *sparse) touch([]uint64) {}

func (s *sparse) take(i uint64, owner Owner) {
	if (s.count+1)*8 > len(s.index)*5 {
		s.grow()
	}
	slot, _ := s.find(i)
	if s.count == len(s.chunks)*chunkSize {
		s.chunks = append(s.chunks, new([chunkSize]entry))
	}
	s.count++
	s.index[slot] = uint32(s.count)
	*s.at(uint32(s.count)) = entry{offset: i, owner: owner}
}

func (s *sparse) grow() {
	s.index = make([]uint32, 2*len(s.index))
	for number := 1; number <= s.count; number++ {
		slot, _ := s.find(s.at(uint32(number)).offset)
		s.index[slot] = uint32(number)
	}
}

func (s *sparse) put(i uint64) {
	slot, _ := s.find(i)
	hole, last := s.index[slot], uint32(s.count)
	s.unlink(slot)
	if hole != last {
		moved, _ := s.find(s.at(last).offset)
		s.index[moved] = hole
		*s.at(hole) = *s.at(last)
	}
	*s.at(last) = entry{}
	s.count--
	// One spare chunk stays, so that take and put at its boundary do not allocate.
	if spare := s.count/chunkSize + 2; len(s.chunks) > spare {
		s.chunks[spare] = nil
		s.chunks = s.chunks[:spare]
	}
}

// unlink empties a slot, and moves up entries that find would no longer reach.
func (s *sparse) unlink(hole int) {
	mask := len(s.index) - 1
	for i := (hole + 1) & mask; s.index[i] != 0; i = (i + 1) & mask {
		distance := (i - s.home(s.at(s.index[i]).offset)) & mask
		if distance >= (i-hole)&mask {
			s.index[hole] = s.index[i]
			hole = i
		}
	}
	s.index[hole] = 0
}

func (s *sparse) owner(i uint64) (Owner, bool) {
	slot, found := s.find(i)
	if !found {
		return "", false
	}
	return s.at(s.index[slot]).owner, true
}

// next tries one offset after the other. That is quick while the range is far from
// full, which ranges of this size are.
func (s *sparse) next(i uint64) (uint64, bool) {
	for i < s.n {
		if end, isBlocked := blockedAt(s.blocked, i); isBlocked {
			i = end + 1 // does not overflow: no range has the largest offset
			continue
		}
		if _, found := s.find(i); !found {
			return i, true
		}
		i++
	}
	return 0, false
}

// after copies all entries at once, unsorted: without an order there is nothing to
// continue from.
func (s *sparse) after(i uint64, into []entry) ([]entry, bool) {
	for number := 1; number <= s.count; number++ {
		if e := *s.at(uint32(number)); e.offset >= i {
			into = append(into, e)
		}
	}
	return into, false
}

// blockedAt reports whether an offset is in one of the spans, and the end of that.
func blockedAt(blocked []span, i uint64) (end uint64, ok bool) {
	at, found := slices.BinarySearchFunc(blocked, i, func(s span, i uint64) int {
		switch {
		case s.last < i:
			return -1
		case s.first > i:
			return 1
		}
		return 0
	})
	if !found {
		return 0, false
	}
	return blocked[at].last, true
}
