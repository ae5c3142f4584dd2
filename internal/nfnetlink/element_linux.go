package nfnetlink

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// Element is an element of a set or map. Its byte slices lie in the receive
// buffer and are valid until the visitor returns.
type Element struct {
	Key []byte
	// KeyEnd is the last key of a range with several fields, else nil.
	KeyEnd []byte
	// Data is the datum of a map, nil in a set and in a map to verdicts.
	Data []byte
	// Verdict is set if HasVerdict, and Chain if it leads to a chain.
	HasVerdict bool
	Verdict    Verdict
	Chain      []byte
	// IntervalEnd marks the first key behind a range.
	IntervalEnd bool
	// Timeout is the life that the element was given, zero when it has the
	// one of the set, and Expires how much is left of it, zero when it
	// does not expire.
	Timeout, Expires time.Duration
}

// Elements visits the elements of a set or map, in no particular order. It is
// an error if there is no such set (ENOENT).
//
// The kernel finds its place again by counting from the start for every 32
// KiB, so that the time grows with the square of the number of elements: from
// some 100,000 on, replacing a set is cheaper than reading it.
//
// A set that was created without a size grows in the background after it was
// filled. A dump at that time gives some elements twice and leaves out as many
// others, and the kernel does not tell. Who needs certainty gives the set a
// size, or has the visitor return [ErrInterrupted] for an element that it has
// seen already.
func (c *Conn) Elements(ctx context.Context, t Table, set string, v Visitor[Element]) error {
	q := query{
		op: "list elements of", typ: unix.NFT_MSG_GETSETELEM,
		table: t, name: set, attr: unix.NFTA_SET_ELEM_LIST_SET,
	}
	var e Element
	return c.visit(ctx, q, reader{begin: v.Begin, consistent: v.Consistent, each: func(a attrs) error {
		return eachElement(a.find(unix.NFTA_SET_ELEM_LIST_ELEMENTS), &e, v.Each)
	}})
}

// eachElement decodes a list of elements, each into e.
func eachElement(list attrs, e *Element, each func(*Element) error) error {
	for {
		_, v, ok := list.next()
		if !ok {
			return list.err()
		}
		*e = Element{}
		if err := e.parse(v); err != nil {
			return err
		}
		if err := each(e); err != nil {
			return err
		}
	}
}

func (e *Element) parse(a attrs) error {
	for {
		typ, v, ok := a.next()
		if !ok {
			return a.err()
		}
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key = attrs(v).find(unix.NFTA_DATA_VALUE)
		case attrElemKeyEnd:
			e.KeyEnd = attrs(v).find(unix.NFTA_DATA_VALUE)
		case unix.NFTA_SET_ELEM_DATA:
			e.parseData(v)
		case unix.NFTA_SET_ELEM_FLAGS:
			e.IntervalEnd = getUint32(v)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_TIMEOUT:
			e.Timeout = milliseconds(v)
		case unix.NFTA_SET_ELEM_EXPIRATION:
			e.Expires = milliseconds(v)
		}
	}
}

// parseData reads a datum or a verdict.
func (e *Element) parseData(a attrs) {
	typ, v, _ := a.next()
	switch typ {
	case unix.NFTA_DATA_VALUE:
		e.Data = v
	case unix.NFTA_DATA_VERDICT:
		e.HasVerdict = true
		verdict := attrs(v)
		e.Verdict = Verdict(getUint32(verdict.find(unix.NFTA_VERDICT_CODE)))
		e.Chain = getText(verdict.find(unix.NFTA_VERDICT_CHAIN))
	}
}
