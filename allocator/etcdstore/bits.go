package etcdstore

import (
	"bytes"
	"fmt"
	"math/bits"
	"slices"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/rangemap"
)

// area is a range with the path of its map.
type area struct {
	keys *allocator.Range
	name string // of the range
	path string // in etcd
}

func newArea(prefix string, c allocator.Config) (area, error) {
	keys, err := rangemap.RangeOf(c)
	if err != nil {
		return area{}, err
	}
	return area{keys: keys, name: keys.String(), path: prefix + "maps/" + keys.String()}, nil
}

// bitmap is a map at one revision. It is replaced, and never changed.
type bitmap struct {
	created, modified int64  // revisions
	bits              []byte // bit 0 is the lowest one of the last byte
}

func (a *area) byteCount() int { return int((a.keys.Size() + 7) / 8) }

// decode reads a map.
func (a *area) decode(object []byte, created, modified int64) (bitmap, error) {
	m, err := rangemap.Unmarshal(object)
	if err != nil {
		return bitmap{}, fmt.Errorf("%s: %w", a.path, err)
	}
	if m.Range != a.name {
		return bitmap{}, fmt.Errorf("%s is the map of %s: %w", a.path, m.Range, allocator.ErrInvalid)
	}
	data := bytes.TrimLeft(m.Data, "\x00")
	n := a.byteCount()
	if len(data) > n || len(data) == n && n > 0 && a.keys.Size()%8 > 0 && data[0]>>(a.keys.Size()%8) != 0 {
		return bitmap{}, fmt.Errorf("%s: %w", a.path, rangemap.ErrOutOfRange)
	}
	bits := make([]byte, n)
	copy(bits[n-len(data):], data)
	return bitmap{created: created, modified: modified, bits: bits}, nil
}

// encode returns the object of a map.
func (a *area) encode(bits []byte) string {
	return string(rangemap.Map{Range: a.name, Data: bytes.TrimLeft(bits, "\x00")}.Marshal())
}

func (b bitmap) has(i uint64) bool { return b.bits[len(b.bits)-1-int(i/8)]>>(i%8)&1 == 1 }

// with sets or clears a bit in changed, which begins as a copy of the map.
func (b bitmap) with(changed []byte, i uint64, taken bool) []byte {
	if changed == nil {
		changed = slices.Clone(b.bits)
	}
	at := &changed[len(changed)-1-int(i/8)]
	if taken {
		*at |= 1 << (i % 8)
	} else {
		*at &^= 1 << (i % 8)
	}
	return changed
}

// bare returns the claim of a bit without a record of its owner.
func (b bitmap) bare(k allocator.Key) allocator.Claim {
	return allocator.Claim{Key: k, Owner: Imported, Token: uint64(b.created), Version: allocator.Version(b.created)}
}

// keysIn returns the keys of all bits that are set.
func (a *area) keysIn(b bitmap) []allocator.Key {
	var keys []allocator.Key
	for i := range len(b.bits) {
		for rest := b.bits[len(b.bits)-1-i]; rest != 0; rest &= rest - 1 {
			keys = append(keys, a.keys.Key(uint64(8*i+bits.TrailingZeros8(rest))))
		}
	}
	return keys
}

// without returns the bits of a map that another one does not have.
func (b bitmap) without(other bitmap) bitmap {
	b.bits = slices.Clone(b.bits)
	for i := range b.bits {
		b.bits[i] &^= other.bits[i]
	}
	return b
}
