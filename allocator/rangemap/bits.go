package rangemap

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/vipkit/vipkit/allocator"
)

// Limit is how many addresses of an IPv6 range a map covers, with the network address.
const Limit = 1 << 16

// maxKeys bounds the keys of a map: 2 MiB of bits.
const maxKeys = 1 << 24

// ErrOutOfRange says that a map has a bit beyond its range.
var ErrOutOfRange = errors.New("out of the range of the map")

// keysOf returns the range of a map, by its canonical form.
func keysOf(text string) (*allocator.Range, error) {
	c, err := allocator.ParseConfig(text)
	if err != nil {
		return nil, err
	}
	if c.Prefix.Addr().Is6() {
		c.Limit = Limit
	}
	r, err := allocator.NewRange(c)
	if err != nil {
		return nil, err
	}
	if n := r.Size(); n > maxKeys {
		return nil, fmt.Errorf("a map of %v would have %d bits: %w", c, n, allocator.ErrTooLarge)
	}
	return r, nil
}

// Keys returns the taken keys, in order. A bit beyond the range is [ErrOutOfRange], as the
// map is damaged.
func (m Map) Keys() ([]allocator.Key, error) {
	r, err := keysOf(m.Range)
	if err != nil {
		return nil, err
	}
	size := r.Size()
	var keys []allocator.Key
	for at := range m.Data {
		b := m.Data[len(m.Data)-1-at]
		for ; b != 0; b &= b - 1 {
			i := uint64(at)*8 + uint64(bits.TrailingZeros8(b))
			if i >= size {
				return nil, fmt.Errorf("bit %d of a map of %v: %w", i, r, ErrOutOfRange)
			}
			keys = append(keys, r.Key(i))
		}
	}
	return keys, nil
}
