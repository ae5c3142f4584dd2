package rangemap

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/vipkit/vipkit/allocator"
)

// Limit is how many addresses of an IPv6 range a map covers, with the network address.
const Limit = 1 << 16

// maxKeys bounds the keys of a map: 1 MiB of bits, as etcd accepts 1.5 MiB in a request.
const maxKeys = 1 << 23

// ErrOutOfRange says that a map has a bit beyond its range.
var ErrOutOfRange = errors.New("out of the range of the map")

// RangeOf numbers the keys of the map of a range: of IPv6 the first [Limit] addresses. A map of more
// than 8,388,608 keys is [allocator.ErrTooLarge]. Draining concerns only a pool.
func RangeOf(c allocator.Config) (*allocator.Range, error) {
	c = allocator.Config{Prefix: c.Prefix, FirstPort: c.FirstPort, LastPort: c.LastPort}
	if c.Prefix.Addr().Is6() {
		c.Limit = Limit
	}
	r, err := allocator.NewRange(c)
	if err == nil && r.Size() > maxKeys {
		return nil, fmt.Errorf("a map of %v would have %d bits: %w", c, r.Size(), allocator.ErrTooLarge)
	}
	return r, err
}

// Keys returns the taken keys, in order. A bit beyond the range is [ErrOutOfRange], as the
// map is damaged.
func (m Map) Keys() ([]allocator.Key, error) {
	c, err := allocator.ParseConfig(m.Range)
	if err != nil {
		return nil, err
	}
	r, err := RangeOf(c)
	if err != nil {
		return nil, err
	}
	var keys []allocator.Key
	for at := range m.Data {
		b := m.Data[len(m.Data)-1-at]
		for ; b != 0; b &= b - 1 {
			i := uint64(at)*8 + uint64(bits.TrailingZeros8(b))
			if i >= r.Size() {
				return nil, fmt.Errorf("bit %d of a map of %v: %w", i, r, ErrOutOfRange)
			}
			keys = append(keys, r.Key(i))
		}
	}
	return keys, nil
}
