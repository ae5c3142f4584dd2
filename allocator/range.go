package allocator

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
)

// Range numbers the keys that a [Config] describes, from 0 on. It does not change, and has no
// memory of what is allocated: a [Pool] has.
type Range struct {
	config  Config
	kind    Kind
	n, band uint64 // keys, and keys of the lower band
	hi, lo  uint64 // of offset 0
}

// NewRange checks a configuration and numbers its keys. The error is [ErrTooLarge] or [ErrInvalid].
func NewRange(c Config) (*Range, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	r := &Range{config: c}
	var err error
	switch {
	case c.Prefix.IsValid():
		err = r.setPrefix()
	case c.FirstPort > 0:
		r.kind, r.lo = Port, uint64(c.FirstPort)
		r.n = uint64(c.LastPort) - uint64(c.FirstPort) + 1
		r.band = bandOf(r.n, portShare, maxPortBand)
	default:
		err = r.setAddresses()
	}
	if err == nil && r.kind == IPv6 && r.n > 0 && r.hasMapped() {
		err = fmt.Errorf("%w range %v: it has ::ffff:0:0/96, which is IPv4, written as IPv6", ErrInvalid, c)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// setPrefix sets kind, first key, number of keys and band of a range of addresses.
func (r *Range) setPrefix() error {
	size, n, err := r.config.addresses()
	if err != nil {
		return err
	}
	r.n, r.band = n, min(n, bandOf(size, ipShare, maxIPBand))
	base := r.config.Prefix.Masked().Addr()
	r.kind = AddrKey(base).Kind()
	b := base.As16()
	low, carry := bits.Add64(binary.BigEndian.Uint64(b[8:]), 1, 0)
	r.hi, r.lo = binary.BigEndian.Uint64(b[:8])+carry, low
	return nil
}

// setAddresses sets kind, first key, number of keys and band of a range of addresses by its ends.
func (r *Range) setAddresses() error {
	first, last := r.config.Addresses.First.addr.As16(), r.config.Addresses.Last.addr.As16()
	r.kind = r.config.Addresses.First.Kind()
	r.hi, r.lo = binary.BigEndian.Uint64(first[:8]), binary.BigEndian.Uint64(first[8:])
	n, borrow := bits.Sub64(binary.BigEndian.Uint64(last[8:]), r.lo, 0)
	hi, _ := bits.Sub64(binary.BigEndian.Uint64(last[:8]), r.hi, borrow)
	if hi > 0 || n == math.MaxUint64 {
		return &RangeError{Reason: ErrTooLarge, Range: r.config.String()}
	}
	r.n = n + 1
	r.band = bandOf(r.n, ipShare, maxIPBand)
	return nil
}

// hasMapped reports whether a range of IPv6 has IPv4-mapped addresses, whose keys are of IPv4.
func (r *Range) hasMapped() bool {
	mapped := netip.MustParsePrefix("::ffff:0:0/96")
	first, last := r.key(0).addr, r.key(r.n-1).addr
	return last.Compare(mapped.Addr()) >= 0 && (first.Compare(mapped.Addr()) <= 0 || mapped.Contains(first))
}

// String is the range in canonical form.
func (r *Range) String() string { return r.config.String() }

// Size is how many keys can be allocated.
func (r *Range) Size() uint64 { return r.n }

// Offset is the position of a key within the range, from 0. It is false for keys that cannot be allocated.
func (r *Range) Offset(k Key) (uint64, bool) {
	if k.Kind() != r.kind {
		return 0, false
	}
	hi, lo := uint64(0), uint64(k.port)
	if r.kind != Port {
		b := k.addr.As16()
		hi, lo = binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
	}
	lo, borrow := bits.Sub64(lo, r.lo, 0)
	hi, borrow = bits.Sub64(hi, r.hi, borrow)
	return lo, borrow == 0 && hi == 0 && lo < r.n
}

// Key is the key at a position within the range. It is the zero Key if there is
// none.
func (r *Range) Key(offset uint64) Key {
	if offset >= r.n {
		return Key{}
	}
	return r.key(offset)
}

// key returns the key of an offset that the range has.
func (r *Range) key(offset uint64) Key {
	lo, carry := bits.Add64(r.lo, offset, 0)
	switch r.kind {
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
