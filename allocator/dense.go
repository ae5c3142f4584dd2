package allocator

import "math/bits"

const (
	// namesPage is how many names are allocated at once.
	namesPage = 1024
	// word is how many offsets a word of a bitmap has.
	word = 64
)

// dense keeps ranges of moderate size: a bit an offset, and the number of a name. A
// pair of calls touches one of the numbers, which are four bytes each, and the name
// that was last freed. With millions of owners each further place that it touched
// would be a way to the memory and back.
type dense struct {
	n      uint64
	free   bitmap
	keep   bool     // somebody asks for owners
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
	d.seen = sum // Without a trace, nothing would be read.
}

func (d *dense) next(i uint64) (uint64, bool) { return d.free.next(i) }

// after copies the next taken offsets, in order, as many as there is room for.
func (d *dense) after(i uint64, into []entry) ([]entry, bool) {
	if d.owners == nil {
		return into, false
	}
	for i < d.n {
		// What is not free is taken or blocked.
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

// names are texts by numbers from 1. A number that was removed is the next one to be
// given.
type names struct {
	pages []*[namesPage]Owner
	used  int // numbers that were given, without those that are free again
	free  []uint32
}

func (s *names) at(number uint32) *Owner {
	return &s.pages[(number-1)/namesPage][(number-1)%namesPage]
}

func (s *names) add(name Owner) uint32 {
	number := uint32(s.used + 1)
	if last := len(s.free) - 1; last >= 0 {
		number = s.free[last]
		s.free = s.free[:last]
	} else if s.used == len(s.pages)*namesPage {
		s.pages = append(s.pages, new([namesPage]Owner))
	}
	s.used++
	*s.at(number) = name
	return number
}

func (s *names) remove(number uint32) {
	*s.at(number) = ""
	s.used--
	s.free = append(s.free, number)
	// What a crowd has left behind is given up when the last of them has gone.
	if s.used == 0 && len(s.pages) > 1 {
		*s = names{pages: s.pages[:1:1]}
	}
}
