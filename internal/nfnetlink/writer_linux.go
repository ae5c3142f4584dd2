package nfnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	msgDestroySetElem = 30 // NFT_MSG_DESTROYSETELEM
	attrElemKeyEnd    = 10 // NFTA_SET_ELEM_KEY_END

	// maxList is how long the list of one message may become. A longer
	// attribute than 64 KiB would wrap its length, and the kernel would
	// silently take a part of the elements.
	maxList = 60_000
	// maxValue is the longest key or datum that the kernel stores.
	maxValue = 64
)

var errElement = errors.New("key, datum or chain name has an impossible length")

// ElementWriter adds elements of one set to a [Batch], in as many messages as
// it takes. Other changes may be added to the batch in between. Nothing has to
// be closed.
type ElementWriter struct {
	b     *Batch
	table Table
	set   string
	id    uint32
	op    Op

	serial uint64 // of the message that is being filled
	list   int    // offset of its list
}

// Elements returns a writer for the elements of the set of that name.
func (b *Batch) Elements(op Op, t Table, set string) ElementWriter {
	return ElementWriter{b: b, table: t, set: set, op: op}
}

// AnonymousElements returns a writer for the elements of the anonymous set to
// which [Batch.AddSet] gave the number id in this batch.
func (b *Batch) AnonymousElements(t Table, id uint32) ElementWriter {
	return ElementWriter{b: b, table: t, set: AnonymousSetName, id: id}
}

// Key writes an element of a set, or names the one to remove. Byte slices are
// copied.
func (w *ElementWriter) Key(key []byte) {
	if w.lengths(len(key), 1) {
		w.value(w.element(valueLen(key)), unix.NFTA_SET_ELEM_KEY, key)
	}
}

// KeyEnd writes the first key behind a range in a set of intervals with one
// field; the range started with the element before. A range that reaches to
// the highest key has no end.
func (w *ElementWriter) KeyEnd(key []byte) {
	if w.lengths(len(key), 1) {
		p := w.element(8 + valueLen(key))
		putHeader(p, unix.NFTA_SET_ELEM_FLAGS, 8)
		binary.BigEndian.PutUint32(p[attrLen:], unix.NFT_SET_ELEM_INTERVAL_END)
		w.value(p[8:], unix.NFTA_SET_ELEM_KEY, key)
	}
}

// KeyRange writes an element of a set of intervals with several fields. Each
// field of the range goes from that of first to that of last, both included.
func (w *ElementWriter) KeyRange(first, last []byte) {
	if w.lengths(len(first), len(last)) {
		p := w.element(valueLen(first) + valueLen(last))
		p = w.value(p, unix.NFTA_SET_ELEM_KEY, first)
		w.value(p, attrElemKeyEnd, last)
	}
}

// KeyData writes an element of a map.
func (w *ElementWriter) KeyData(key, data []byte) {
	if w.lengths(len(key), len(data)) {
		p := w.element(valueLen(key) + valueLen(data))
		p = w.value(p, unix.NFTA_SET_ELEM_KEY, key)
		w.value(p, unix.NFTA_SET_ELEM_DATA, data)
	}
}

// KeyVerdict writes an element of a map to verdicts. The chain is empty but
// for jumps and gotos, and must exist when the kernel comes to the element.
func (w *ElementWriter) KeyVerdict(key []byte, v Verdict, chain string) {
	if !w.lengths(len(key), 1) {
		return
	}
	if len(chain) > maxName {
		w.b.fail(fmt.Errorf("element of set %q with chain %q: %w", w.set, chain, errElement))
		return
	}
	verdict := attrLen + 8
	if chain != "" {
		verdict += align(attrLen + len(chain) + 1)
	}
	p := w.element(valueLen(key) + attrLen + verdict)
	p = w.value(p, unix.NFTA_SET_ELEM_KEY, key)
	putHeader(p, unix.NFTA_SET_ELEM_DATA|nested, attrLen+verdict)
	p = p[attrLen:]
	putHeader(p, unix.NFTA_DATA_VERDICT|nested, verdict)
	p = p[attrLen:]
	putHeader(p, unix.NFTA_VERDICT_CODE, 8)
	binary.BigEndian.PutUint32(p[attrLen:], uint32(v))
	if chain != "" {
		p = p[8:]
		putHeader(p, unix.NFTA_VERDICT_CHAIN, attrLen+len(chain)+1)
		clear(p[attrLen+copy(p[attrLen:], chain):])
	}
}

// lengths refuses values that would not fit, in the kernel or into a message.
func (w *ElementWriter) lengths(key, other int) bool {
	if key < 1 || key > maxValue || other < 1 || other > maxValue {
		w.b.fail(fmt.Errorf("element of set %q: %w", w.set, errElement))
		return false
	}
	return true
}

// valueLen returns the room that a key or datum takes as nested attributes.
func valueLen(v []byte) int { return 2*attrLen + align(len(v)) }

// value puts a key or datum at the front of p and returns what follows.
func (w *ElementWriter) value(p []byte, typ uint16, v []byte) []byte {
	n := valueLen(v)
	putHeader(p, typ|nested, n)
	putHeader(p[attrLen:], unix.NFTA_DATA_VALUE, attrLen+len(v))
	clear(p[2*attrLen+copy(p[2*attrLen:n], v) : n])
	return p[n:]
}

func putHeader(p []byte, typ uint16, n int) {
	binary.NativeEndian.PutUint16(p, uint16(n))
	binary.NativeEndian.PutUint16(p[2:], typ)
}

// element appends an element with n bytes of attributes and returns the room
// for them. The lengths of list and message are always kept up to date.
func (w *ElementWriter) element(n int) []byte {
	n += attrLen
	b := w.b
	if w.serial == 0 || w.serial != b.serial || len(b.buf)-w.list+n > maxList {
		w.start()
	}
	b.elements++
	start := len(b.buf)
	b.buf = slices.Grow(b.buf, n)[:start+n]
	putHeader(b.buf[start:], unix.NFTA_LIST_ELEM|nested, n)
	binary.NativeEndian.PutUint16(b.buf[w.list:], uint16(len(b.buf)-w.list))
	b.end()
	return b.buf[start+attrLen:]
}

// start begins a new message.
func (w *ElementWriter) start() {
	b := w.b
	typ, flags := uint16(unix.NFT_MSG_NEWSETELEM), uint16(unix.NLM_F_CREATE)
	switch w.op {
	case OpAdd:
	case OpDelete:
		typ, flags = unix.NFT_MSG_DELSETELEM, 0
	case OpDestroy:
		typ, flags = msgDestroySetElem, 0
	}
	b.begin(typ, flags, w.table, w.set)
	if w.id != 0 {
		b.buf = appendUint32(b.buf, unix.NFTA_SET_ELEM_LIST_SET_ID, w.id)
	}
	w.list = b.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	w.serial = b.serial
	b.end()
}
