package nfnetlink

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

const (
	// maxList bounds the length in bytes of the list of one message. The length of an
	// attribute of more than 64 KiB would wrap, and the kernel would silently add only
	// a part of the elements.
	maxList = 60_000
)

// ElementWriter adds elements of one set to a [Batch], in as many messages as are
// needed. Other changes may be added to the batch in between. The writer needs no Close.
type ElementWriter struct {
	b     *Batch
	table Table
	set   string
	op    Op

	serial uint64 // of the message that is being filled
	list   int    // offset of its list
}

// Elements returns a writer for the elements of the set of that name.
func (b *Batch) Elements(op Op, t Table, set string) ElementWriter {
	return ElementWriter{b: b, table: t, set: set, op: op}
}

// Key writes an element of a set, or names the one to remove. Byte slices are
// copied.
func (w *ElementWriter) Key(key []byte) {
	putValue(w.element(valueLen(key)), unix.NFTA_SET_ELEM_KEY, key)
}

// KeyEnd writes the first key after a range in a set of intervals; the range started with
// the element before. A range that includes the highest key has no end.
func (w *ElementWriter) KeyEnd(key []byte) {
	p := w.element(8 + valueLen(key))
	p = putHeader(p, unix.NFTA_SET_ELEM_FLAGS, 8)
	binary.BigEndian.PutUint32(p, unix.NFT_SET_ELEM_INTERVAL_END)
	putValue(p[4:], unix.NFTA_SET_ELEM_KEY, key)
}

// KeyData writes an element of a map.
func (w *ElementWriter) KeyData(key, data []byte) {
	p := w.element(valueLen(key) + valueLen(data))
	p = putValue(p, unix.NFTA_SET_ELEM_KEY, key)
	putValue(p, unix.NFTA_SET_ELEM_DATA, data)
}

// KeyVerdict writes an element of a verdict map. The chain is empty except for jumps and
// gotos, and must exist when the kernel processes the element.
func (w *ElementWriter) KeyVerdict(key []byte, v Verdict, chain string) {
	verdict := attrLen + 8
	if chain != "" {
		verdict += rawnetlink.Align(attrLen + len(chain) + 1)
	}
	p := w.element(valueLen(key) + attrLen + verdict)
	p = putValue(p, unix.NFTA_SET_ELEM_KEY, key)
	p = putHeader(p, unix.NFTA_SET_ELEM_DATA|nested, attrLen+verdict)
	p = putHeader(p, unix.NFTA_DATA_VERDICT|nested, verdict)
	p = putHeader(p, unix.NFTA_VERDICT_CODE, 8)
	binary.BigEndian.PutUint32(p, uint32(v))
	if chain != "" {
		p = putHeader(p[4:], unix.NFTA_VERDICT_CHAIN, attrLen+len(chain)+1)
		clear(p[copy(p, chain):])
	}
}

// valueLen returns the length of a key or datum as nested attributes.
func valueLen(v []byte) int { return 2*attrLen + rawnetlink.Align(len(v)) }

// putValue writes a key or datum to the front of p and returns the rest of p.
func putValue(p []byte, typ uint16, v []byte) []byte {
	n := valueLen(v)
	p = putHeader(putHeader(p, typ|nested, n), unix.NFTA_DATA_VALUE, attrLen+len(v))
	n -= 2 * attrLen
	clear(p[copy(p[:n], v):n])
	return p[n:]
}

// putHeader writes the header of an attribute to the front of p and returns the rest of p.
func putHeader(p []byte, typ uint16, n int) []byte {
	binary.NativeEndian.PutUint16(p, uint16(n))
	binary.NativeEndian.PutUint16(p[2:], typ)
	return p[attrLen:]
}

// element appends an element with n bytes of attributes and returns the space for these.
// It updates the lengths of list and message.
func (w *ElementWriter) element(n int) []byte {
	n += attrLen
	b := w.b
	if w.serial == 0 || w.serial != b.serial || len(b.buf)-w.list+n > maxList {
		w.start()
	}
	start := len(b.buf)
	b.buf = slices.Grow(b.buf, n)[:start+n]
	p := putHeader(b.buf[start:], unix.NFTA_LIST_ELEM|nested, n)
	binary.NativeEndian.PutUint16(b.buf[w.list:], uint16(len(b.buf)-w.list))
	b.end()
	return p
}

// start begins a new message.
func (w *ElementWriter) start() {
	b := w.b
	flags := uint16(0)
	if w.op == OpAdd {
		flags = unix.NLM_F_CREATE
	}
	b.begin(uint16(w.op), flags, w.table, w.set)
	w.list = b.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	w.serial = b.serial
}
