package nfnetlink

import (
	"encoding/binary"

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
	w.b.buf = appendValue(w.element(valueLen(key)), unix.NFTA_SET_ELEM_KEY, key)
}

// KeyEnd writes the first key after a range in a set of intervals; the range started with
// the element before. A range that includes the highest key has no end.
func (w *ElementWriter) KeyEnd(key []byte) {
	b := appendUint32(w.element(8+valueLen(key)), unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	w.b.buf = appendValue(b, unix.NFTA_SET_ELEM_KEY, key)
}

// KeyData writes an element of a map.
func (w *ElementWriter) KeyData(key, data []byte) {
	b := appendValue(w.element(valueLen(key)+valueLen(data)), unix.NFTA_SET_ELEM_KEY, key)
	w.b.buf = appendValue(b, unix.NFTA_SET_ELEM_DATA, data)
}

// KeyVerdict writes an element of a verdict map. The chain is empty except for jumps and
// gotos, and must exist when the kernel processes the element.
func (w *ElementWriter) KeyVerdict(key []byte, v Verdict, chain string) {
	verdict := 8
	if chain != "" {
		verdict += rawnetlink.Align(attrLen + len(chain) + 1)
	}
	b := appendValue(w.element(valueLen(key)+2*attrLen+verdict), unix.NFTA_SET_ELEM_KEY, key)
	b = rawnetlink.AppendHeader(b, unix.NFTA_SET_ELEM_DATA|nested, attrLen+verdict)
	b = rawnetlink.AppendHeader(b, unix.NFTA_DATA_VERDICT|nested, verdict)
	b = appendUint32(b, unix.NFTA_VERDICT_CODE, uint32(v))
	if chain != "" {
		b = rawnetlink.AppendString(b, unix.NFTA_VERDICT_CHAIN, chain)
	}
	w.b.buf = b
}

// valueLen returns the length of a key or datum as nested attributes.
func valueLen(v []byte) int { return 2*attrLen + rawnetlink.Align(len(v)) }

// appendValue appends a key or datum.
func appendValue(b []byte, typ uint16, v []byte) []byte {
	b = rawnetlink.AppendHeader(b, typ|nested, valueLen(v)-attrLen)
	return rawnetlink.AppendAttr(b, unix.NFTA_DATA_VALUE, v)
}

// element returns the batch with the header of an element that has n bytes of attributes, which the caller
// appends. It updates the lengths of list and message.
func (w *ElementWriter) element(n int) []byte {
	b := w.b
	if w.serial == 0 || w.serial != b.serial || len(b.buf)-w.list+attrLen+n > maxList {
		w.start()
	}
	end := len(b.buf) + attrLen + n
	binary.NativeEndian.PutUint16(b.buf[w.list:], uint16(end-w.list))
	binary.NativeEndian.PutUint32(b.buf[b.last:], uint32(end-b.last))
	return rawnetlink.AppendHeader(b.buf, unix.NFTA_LIST_ELEM|nested, n)
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
