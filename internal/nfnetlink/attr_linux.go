package nfnetlink

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

const (
	// nfgenLen is the length of struct nfgenmsg, which follows the netlink
	// header in every message of this subsystem.
	nfgenLen  = 4
	headerLen = unix.NLMSG_HDRLEN + nfgenLen
	attrLen   = unix.NLA_HDRLEN
	// maxAttr is the longest attribute: its length is a 16-bit number.
	maxAttr = 1<<16 - 1
	nested  = unix.NLA_F_NESTED
)

// errMalformed says that a message from the kernel does not hold what its
// length fields promise.
var errMalformed = errors.New("nfnetlink: malformed message")

// align rounds n up to the four bytes to which netlink aligns everything.
func align(n int) int { return (n + 3) &^ 3 }

func pad(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func appendHeader(b []byte, typ uint16, n int) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attrLen+n))
	return binary.NativeEndian.AppendUint16(b, typ)
}

func appendString(b []byte, typ uint16, s string) []byte {
	b = appendHeader(b, typ, len(s)+1)
	b = append(b, s...)
	return pad(append(b, 0))
}

func appendBytes(b []byte, typ uint16, v []byte) []byte {
	b = appendHeader(b, typ, len(v))
	return pad(append(b, v...))
}

func appendUint32(b []byte, typ uint16, v uint32) []byte {
	return binary.BigEndian.AppendUint32(appendHeader(b, typ, 4), v)
}

func appendUint64(b []byte, typ uint16, v uint64) []byte {
	return binary.BigEndian.AppendUint64(appendHeader(b, typ, 8), v)
}

// openNested starts an attribute that contains others. Give the offset to
// closeNested when they have been appended.
func openNested(b []byte, typ uint16) (buf []byte, offset int) {
	return appendHeader(b, typ|nested, 0), len(b)
}

// closeNested fills in the length of the attribute at offset. It reports
// whether the length could be expressed.
func closeNested(b []byte, offset int) bool {
	n := len(b) - offset
	if n > maxAttr {
		return false
	}
	binary.NativeEndian.PutUint16(b[offset:], uint16(n))
	return true
}

// attrs is a sequence of attributes that is read from the front.
type attrs []byte

// next takes one attribute off. It returns false at the end, and where the
// rest is no attribute; err tells the two apart.
func (a *attrs) next() (typ uint16, value []byte, ok bool) {
	b := *a
	if len(b) < attrLen {
		return 0, nil, false
	}
	n := int(binary.NativeEndian.Uint16(b))
	if n < attrLen || n > len(b) {
		return 0, nil, false
	}
	*a = b[min(align(n), len(b)):]
	return binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER), b[attrLen:n], true
}

func (a attrs) err() error {
	if len(a) != 0 {
		return errMalformed
	}
	return nil
}

// find returns the first attribute of a type, nil when there is none.
func (a attrs) find(want uint16) []byte {
	for {
		typ, v, ok := a.next()
		if !ok {
			return nil
		}
		if typ == want {
			return v
		}
	}
}

// The readers of values take a value that is too short for zero: the kernel
// does not send such, and no length of a message may lead to a panic.

func getUint32(v []byte) uint32 {
	if len(v) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(v)
}

func getUint64(v []byte) uint64 {
	if len(v) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(v)
}

// getText strips the terminating zero that the kernel sends with a name.
func getText(v []byte) []byte {
	if n := len(v); n > 0 && v[n-1] == 0 {
		return v[:n-1]
	}
	return v
}

// message is one netlink message; payload follows the netlink header.
type message struct {
	typ     uint16
	flags   uint16
	seq     uint32
	payload []byte
}

// messages is what one read from a netlink socket returns.
type messages []byte

// next takes one message off, in the manner of attrs.next.
func (m *messages) next() (message, bool) {
	b := *m
	if len(b) < unix.NLMSG_HDRLEN {
		return message{}, false
	}
	n := binary.NativeEndian.Uint32(b)
	if n < unix.NLMSG_HDRLEN || uint64(n) > uint64(len(b)) {
		return message{}, false
	}
	*m = b[min(align(int(n)), len(b)):]
	return message{
		typ:     binary.NativeEndian.Uint16(b[4:]),
		flags:   binary.NativeEndian.Uint16(b[6:]),
		seq:     binary.NativeEndian.Uint32(b[8:]),
		payload: b[unix.NLMSG_HDRLEN:n],
	}, true
}

func (m messages) err() error {
	if len(m) != 0 {
		return errMalformed
	}
	return nil
}

// generation returns the low bits of the number of the ruleset from which the
// kernel took a message of a dump.
func (m message) generation() uint16 {
	if len(m.payload) < nfgenLen {
		return 0
	}
	return binary.BigEndian.Uint16(m.payload[2:])
}

// attributes returns what follows the nfgenmsg of a message of nf_tables.
func (m message) attributes() attrs {
	if len(m.payload) < nfgenLen {
		return nil
	}
	return m.payload[nfgenLen:]
}
