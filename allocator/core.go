package allocator

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
)

// maxDense is the largest range that gets a bitmap: 2 MiB of it, a /8.
const maxDense = 1 << 24

// wide is the size from which the owners of a range do not fit into the processor's
// caches. Such a range chooses lookahead keys at once.
const (
	wide      = 1 << 18
	lookahead = 32
)

// probes is how many random keys are tried before the next free one after a random key
// is taken. It keeps the choice nearly uniform up to three quarters full.
const probes = 4

// rare: if fewer than one in so many keys of a wide range are free, lookAhead searches
// for free keys and does not try random ones.
const rare = 4

// table remembers the taken offsets of a range, and their owners.
type table interface {
	// isFree is also false for blocked offsets.
	isFree(i uint64) bool
	next(i uint64) (uint64, bool)
	owner(i uint64) (Owner, bool)
	// touch loads the memory that take needs for the offsets into the processor's caches.
	touch(offsets []uint64)
	changer
}

type changer interface {
	// take expects a free offset, put a taken one.
	take(i uint64, owner Owner)
	put(i uint64)
	// after appends the taken offsets from i on, up to the capacity of into, and
	// reports whether there are more.
	after(i uint64, into []entry) ([]entry, bool)
}

// core is a range without a lock: the taken offsets, and the choice of the next one.
type core struct {
	config         Config
	shape          shape
	hi, lo         uint64 // of offset 0
	blocked        []span
	size, bandSize uint64 // without blocked keys
	used, bandUsed uint64
	table          table
	source         rand.Source
	ahead          []uint64 // offsets of the upper band to take next if still free
}

// newCore makes an empty range. A range that does not store its owners is smaller.
func newCore(c Config, keepOwners bool) (*core, error) {
	sh, err := c.shape()
	if err != nil {
		return nil, err
	}
	r := &core{config: c, shape: sh, source: c.Source}
	if r.source == nil {
		r.source = rand.NewPCG(rand.Uint64(), rand.Uint64())
	}
	if sh.kind == Port {
		r.lo = uint64(c.FirstPort)
	} else {
		base := c.Prefix.Masked().Addr().As16()
		low, carry := bits.Add64(binary.BigEndian.Uint64(base[8:]), 1, 0)
		r.hi, r.lo = binary.BigEndian.Uint64(base[:8])+carry, low
	}
	r.blocked = r.spansOf(c.Exclude)
	r.size, r.bandSize = sh.n, sh.band
	for _, s := range r.blocked {
		r.size -= s.last - s.first + 1
		if s.first < sh.band {
			r.bandSize -= min(s.last+1, sh.band) - s.first
		}
	}
	if sh.n <= maxDense {
		r.table = newDense(sh.n, r.blocked, keepOwners)
	} else {
		r.table = newSparse(sh.n, r.blocked, r.source.Uint64())
	}
	return r, nil
}

// spansOf returns the offsets of blocks, in order and merged.
func (r *core) spansOf(blocks []Block) []span {
	var all []span
	if r.shape.n == 0 {
		return nil
	}
	first, last := r.key(0), r.key(r.shape.n-1)
	for _, b := range blocks {
		if b.First.Kind() != r.shape.kind || b.First.Compare(last) > 0 || b.Last.Compare(first) < 0 {
			continue
		}
		s := span{0, r.shape.n - 1}
		if b.First.Compare(first) > 0 {
			s.first, _ = r.position(b.First)
		}
		if b.Last.Compare(last) < 0 {
			s.last, _ = r.position(b.Last)
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	merged := all[:0]
	for _, s := range all {
		if n := len(merged); n > 0 && s.first <= merged[n-1].last {
			merged[n-1].last = max(merged[n-1].last, s.last)
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

// key returns the key of an offset.
func (r *core) key(offset uint64) Key {
	lo, carry := bits.Add64(r.lo, offset, 0)
	switch r.shape.kind {
	case Port:
		return Key{port: uint16(lo)}
	case IPv4:
		return Key{addr: netip.AddrFrom4([4]byte{byte(lo >> 24), byte(lo >> 16), byte(lo >> 8), byte(lo)})}
	default:
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], r.hi+carry)
	binary.BigEndian.PutUint64(b[8:], lo)
	return Key{addr: netip.AddrFrom16(b)}
}

// position returns the offset of a key; false if it is not part of the range. It
// ignores exclusions.
func (r *core) position(k Key) (uint64, bool) {
	if k.Kind() != r.shape.kind {
		return 0, false
	}
	hi, lo := uint64(0), uint64(k.port)
	if r.shape.kind != Port {
		b := k.addr.As16()
		hi, lo = binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
	}
	lo, borrow := bits.Sub64(lo, r.lo, 0)
	hi, borrow = bits.Sub64(hi, r.hi, borrow)
	return lo, borrow == 0 && hi == 0 && lo < r.shape.n
}

// offset returns the offset of a key that can be allocated.
func (r *core) offset(k Key) (uint64, bool) {
	i, ok := r.position(k)
	if !ok {
		return 0, false
	}
	if len(r.blocked) > 0 {
		_, isBlocked := blockedAt(r.blocked, i)
		return i, !isBlocked
	}
	return i, true
}

// pick chooses a free offset: of the upper band as long as there is one.
func (r *core) pick() (uint64, bool) {
	switch {
	case r.used-r.bandUsed < r.size-r.bandSize:
		return r.pickUpper(), true
	case r.bandUsed < r.bandSize:
		return r.pickWithin(0, r.shape.band), true
	}
	return 0, false
}

// pickUpper chooses a free offset of the upper band, of which there must be one. In a
// wide range each choice waits for the memory; so pickUpper chooses several at once, and
// the waits overlap.
func (r *core) pickUpper() uint64 {
	if r.shape.n < wide {
		return r.pickWithin(r.shape.band, r.shape.n)
	}
	for {
		for len(r.ahead) > 0 {
			last := len(r.ahead) - 1
			i := r.ahead[last]
			r.ahead = r.ahead[:last]
			if r.table.isFree(i) {
				return i
			}
		}
		r.lookAhead()
	}
}

// lookAhead chooses the next offsets of the upper band. A branch on whether a random
// key is free is mispredicted half of the time, so each key is stored, and the next one
// overwrites it unless it is free.
func (r *core) lookAhead() {
	chosen, n, tries := slices.Grow(r.ahead[:0], lookahead)[:lookahead], 0, probes*lookahead
	if upper := r.size - r.bandSize; upper-(r.used-r.bandUsed) < upper/rare {
		tries = 0
	}
	for try := 0; try < tries && n < lookahead; try++ {
		i := r.random(r.shape.band, r.shape.n)
		chosen[n] = i
		if r.table.isFree(i) {
			n++
		}
	}
	for ; n < lookahead; n++ {
		chosen[n] = r.nextWithin(r.shape.band, r.shape.n)
	}
	r.ahead = chosen
	r.table.touch(chosen)
}

// pickWithin chooses one of the offsets from first to before end, of which at
// least one is free.
func (r *core) pickWithin(first, end uint64) uint64 {
	for range probes {
		if i := r.random(first, end); r.table.isFree(i) {
			return i
		}
	}
	return r.nextWithin(first, end)
}

// nextWithin returns the next free offset after a random one of those from first to
// before end, of which at least one is free.
func (r *core) nextWithin(first, end uint64) uint64 {
	// The lower band is used only when the upper one is full: no offset after end is free.
	if i, ok := r.table.next(r.random(first, end)); ok {
		return i
	}
	i, _ := r.table.next(first)
	return i
}

func (r *core) random(first, end uint64) uint64 {
	i, _ := bits.Mul64(r.source.Uint64(), end-first)
	return first + i
}

// take marks a free offset, put a taken one.
func (r *core) take(i uint64, owner Owner) {
	r.table.take(i, owner)
	r.used++
	if i < r.shape.band {
		r.bandUsed++
	}
}

func (r *core) put(i uint64) {
	r.table.put(i)
	r.used--
	if i < r.shape.band {
		r.bandUsed--
	}
}

func (r *core) stats() Stats {
	return Stats{Size: r.size, Used: r.used, BandSize: r.bandSize, BandUsed: r.bandUsed}
}
