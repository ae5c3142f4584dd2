package allocator

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
)

// probes is how many random keys are tried before the next free one after a random key
// is taken. It keeps the choice nearly uniform up to three quarters full.
const probes = 4

// core is a range without a lock: the taken offsets, and the choice of the next one.
type core struct {
	config         Config
	shape          shape
	hi, lo         uint64 // of offset 0
	blocked        []span
	size, bandSize uint64 // without blocked keys
	used, bandUsed uint64
	taken          set
	source         rand.Source
}

// newCore makes an empty range.
func newCore(c Config) (*core, error) {
	sh, err := c.shape()
	if err != nil {
		return nil, err
	}
	r := &core{config: c, shape: sh, taken: newSet(sh.n), source: c.Source}
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
	_, isBlocked := blockedAt(r.blocked, i)
	return i, !isBlocked
}

// pick chooses a free offset, of which there must be one: of the upper band as long as it has one.
func (r *core) pick() uint64 {
	switch {
	case r.used-r.bandUsed < r.size-r.bandSize:
		return r.pickWithin(r.shape.band, r.shape.n)
	default:
		return r.pickWithin(0, r.shape.band)
	}
}

// pickWithin chooses one of the offsets from first to before end, of which at
// least one is free: a random one, or the next free one after it.
func (r *core) pickWithin(first, end uint64) uint64 {
	for range probes {
		if i := r.random(first, end); r.isFree(i) {
			return i
		}
	}
	// The lower band is used only when the upper one is full: no offset after end is free.
	if i, ok := r.next(r.random(first, end)); ok {
		return i
	}
	i, _ := r.next(first)
	return i
}

// isFree is also false for blocked offsets.
func (r *core) isFree(i uint64) bool {
	_, isBlocked := blockedAt(r.blocked, i)
	return !isBlocked && !r.taken.has(i)
}

// next returns the first free offset that is not less than i.
func (r *core) next(i uint64) (uint64, bool) {
	for {
		i = r.taken.next(i)
		end, isBlocked := blockedAt(r.blocked, i)
		if !isBlocked {
			return i, i < r.shape.n
		}
		i = end + 1
	}
}

func (r *core) random(first, end uint64) uint64 {
	i, _ := bits.Mul64(r.source.Uint64(), end-first)
	return first + i
}

// take marks a free offset, put a taken one.
func (r *core) take(i uint64) {
	r.taken.add(i)
	r.used++
	if i < r.shape.band {
		r.bandUsed++
	}
}

func (r *core) put(i uint64) {
	r.taken.remove(i)
	r.used--
	if i < r.shape.band {
		r.bandUsed--
	}
}

func (r *core) stats() Stats {
	return Stats{Size: r.size, Used: r.used, BandSize: r.bandSize, BandUsed: r.bandUsed}
}
