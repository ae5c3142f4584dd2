package allocator

import "math/bits"

const (
	// namesChunk is how many names are allocated at once.
	namesChunk = 1024
	// word is how many offsets a word of a bitmap has.
	word = 64
)

// dense is the table of ranges of moderate size: for each offset a bit, and the number
// of its owner's name. An allocation and a release read one number, which is four bytes,
// and the name that was freed last. With millions of owners each further read would wait
// for the memory.
type dense struct {
	n      uint64
	free   bitmap
	keep   bool     // owners are needed
	owners []uint32 // numbers by offset, from 1; nil as long as there is none
	names  names
	seen   uint32
}

func newDense(n uint64, blocked []span, keepOwners bool) *dense {
	return &dense{n: n, free: newBitmap(n, blocked), keep: keepOwners}
}

func (d *dense) isFree(i uint64) bool { return d.free.isFree(i) }

func (d *dense) take(i uint64, owner Owner) {
	d.free.take(i)
	if !d.keep {
		return
	}
	if d.owners == nil {
		d.owners = make([]uint32, d.n)
	}
	d.owners[i] = d.names.add(owner)
}

func (d *dense) put(i uint64) {
	d.free.put(i)
	if d.keep {
		d.names.remove(d.owners[i])
		d.owners[i] = 0
	}
}

func (d *dense) owner(i uint64) (Owner, bool) {
	if d.owners == nil || d.owners[i] == 0 {
		return "", false
	}
	return *d.names.at(d.owners[i]), true
}

func (d *dense) touch(offsets []uint64) {
	if d.owners == nil {
		return
	}
	sum := uint32(0)
	for _, i := range offsets {
		sum += d.owners[i]
	}
	d.seen = sum // keeps the compiler from removing the reads
}

func (d *dense) next(i uint64) (uint64, bool) { return d.free.next(i) }

// after copies the next taken offsets, in order, as many as there is room for.
func (d *dense) after(i uint64, into []entry) ([]entry, bool) {
	if d.owners == nil {
		return into, false
	}
	for i < d.n {
		// An offset that is not free is taken or blocked.
		skipped := uint64(bits.TrailingZeros64(^d.free.levels[0][i/word] >> (i % word)))
		if skipped > 0 {
			i += min(skipped, word-i%word)
			continue
		}
		if owner, isTaken := d.owner(i); isTaken {
			if len(into) == cap(into) {
				return into, true
			}
			into = append(into, entry{offset: i, owner: owner})
		}
		i++
	}
	return into, false
}

// names are texts by numbers from 1. The number that was removed last is used next.
type names struct {
	chunks []*[namesChunk]Owner
	used   int // numbers in use
	free   []uint32
}

func (s *names) at(number uint32) *Owner {
	return &s.chunks[(number-1)/namesChunk][(number-1)%namesChunk]
}

func (s *names) add(name Owner) uint32 {
	number := uint32(s.used + 1)
	if last := len(s.free) - 1; last >= 0 {
		number = s.free[last]
		s.free = s.free[:last]
	} else if s.used == len(s.chunks)*namesChunk {
		s.chunks = append(s.chunks, new([namesChunk]Owner))
	}
	s.used++
	*s.at(number) = name
	return number
}

func (s *names) remove(number uint32) {
	*s.at(number) = ""
	s.used--
	s.free = append(s.free, number)
	// Free the memory of many names when the last one is removed.
	if s.used == 0 && len(s.chunks) > 1 {
		*s = names{chunks: s.chunks[:1:1]}
	}
}
