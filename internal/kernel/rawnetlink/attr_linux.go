package rawnetlink

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

const (
	attrLen = unix.NLA_HDRLEN
	// MaxAttr is the longest attribute in bytes: its length is a 16-bit number.
	MaxAttr = 1<<16 - 1
)

// ErrMalformed reports that a message from the kernel is shorter than its length
// fields say.
var ErrMalformed = errors.New("malformed netlink message")

// Align rounds n up to a multiple of four bytes, the alignment of netlink.
func Align(n int) int { return (n + 3) &^ 3 }

// Pad appends zeros up to the alignment of netlink.
func Pad(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// AppendHeader appends the header of an attribute whose value has n bytes.
func AppendHeader(b []byte, typ uint16, n int) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attrLen+n))
	return binary.NativeEndian.AppendUint16(b, typ)
}

// AppendAttr appends an attribute with its padding.
func AppendAttr[V []byte | string](b []byte, typ uint16, v V) []byte {
	b = AppendHeader(b, typ, len(v))
	return Pad(append(b, v...))
}

// AppendString appends an attribute whose value is text that a zero terminates.
func AppendString(b []byte, typ uint16, s string) []byte {
	b = AppendHeader(b, typ, len(s)+1)
	b = append(b, s...)
	return Pad(append(b, 0))
}

// Nest begins an attribute that contains others; [Close] ends it.
func Nest(b []byte, typ uint16) (longer []byte, offset int) {
	return AppendHeader(b, typ|unix.NLA_F_NESTED, 0), len(b)
}

// Close ends the attribute that begins at an offset. It returns false if it is too long.
func Close(b []byte, offset int) bool {
	n := len(b) - offset
	if n > MaxAttr {
		return false
	}
	binary.NativeEndian.PutUint16(b[offset:], uint16(n))
	return true
}

// Attrs is a sequence of attributes that is read from the front.
type Attrs []byte

// Next removes the first attribute and returns it, without the flags of its type. It
// returns false at the end, and if the rest is not an attribute; End distinguishes the two.
func (a *Attrs) Next() (typ uint16, value []byte, ok bool) {
	b := *a
	if len(b) < attrLen {
		return 0, nil, false
	}
	n := int(binary.NativeEndian.Uint16(b))
	if n < attrLen || n > len(b) {
		return 0, nil, false
	}
	*a = b[min(Align(n), len(b)):]
	return binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER), b[attrLen:n], true
}

// End returns an error unless nothing is left of attributes or messages.
func End(rest []byte) error {
	if len(rest) != 0 {
		return ErrMalformed
	}
	return nil
}

// Find returns the first attribute of a type, nil if there is none.
func (a Attrs) Find(want uint16) []byte {
	for {
		typ, v, ok := a.Next()
		if !ok {
			return nil
		}
		if typ == want {
			return v
		}
	}
}

// Check returns an error unless a consists of well-formed attributes.
func (a Attrs) Check() error {
	for {
		if _, _, ok := a.Next(); !ok {
			return End(a)
		}
	}
}

// Text returns the first attribute of a type as text, "" if there is none.
func (a Attrs) Text(want uint16) string { return string(TextOf(a.Find(want))) }

// TextOf removes the terminating zero that the kernel sends with a name.
func TextOf(v []byte) []byte {
	if n := len(v); n > 0 && v[n-1] == 0 {
		return v[:n-1]
	}
	return v
}

// Uint32 returns the first attribute of a type as a number in network byte order. It
// returns zero if the attribute is missing or too short: no message must cause a panic.
func (a Attrs) Uint32(want uint16) uint32 { return Uint32Of(a.Find(want)) }

// Uint32Of is [Attrs.Uint32] for a value.
func Uint32Of(v []byte) uint32 {
	if len(v) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(v)
}

// Uint64 is Uint32 for a 64-bit number.
func (a Attrs) Uint64(want uint16) uint64 {
	v := a.Find(want)
	if len(v) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(v)
}
