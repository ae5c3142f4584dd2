package nfnetlink

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

// Element is an element of a set or map. Its byte slices are part of the receive buffer
// and are valid until the visitor returns.
type Element struct {
	Key []byte
	// Data is the datum of a map, nil in a set and in a verdict map.
	Data []byte
	// Verdict is set if HasVerdict is true, and Chain if the verdict is a jump or goto.
	HasVerdict bool
	Verdict    Verdict
	Chain      []byte
	// IntervalEnd marks the first key after a range.
	IntervalEnd bool
}

// Elements visits the elements of a set or map, in no particular order. It is
// an error if there is no such set (ENOENT).
//
// For every 32 KiB, the kernel counts elements from the start to find its position, so
// the time grows with the square of the number of elements: from about 100,000 on,
// replacing a set is cheaper than reading it.
//
// The hash table of a set without a size grows in the background after it was filled. A
// dump at that time has some elements twice and lacks as many others, and the kernel
// does not report that. To be certain, give the set a size, or let the visitor return
// [ErrInterrupted] for an element that it has got already.
func (c *Conn) Elements(ctx context.Context, t Table, set string, v Visitor[Element]) error {
	q := query{op: "list elements of", typ: unix.NFT_MSG_GETSETELEM, table: t, set: set}
	var e Element
	return visit(ctx, c, q, v, func(a attrs) error {
		return eachElement(a.Find(unix.NFTA_SET_ELEM_LIST_ELEMENTS), &e, v.Each)
	})
}

// eachElement decodes a list of elements, each into e.
func eachElement(list attrs, e *Element, each func(*Element) error) error {
	for {
		_, v, ok := list.Next()
		if !ok {
			return rawnetlink.End(list)
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
		typ, v, ok := a.Next()
		if !ok {
			return rawnetlink.End(a)
		}
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key = attrs(v).Find(unix.NFTA_DATA_VALUE)
		case unix.NFTA_SET_ELEM_DATA:
			e.parseData(v)
		case unix.NFTA_SET_ELEM_FLAGS:
			e.IntervalEnd = rawnetlink.Uint32Of(v)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		}
	}
}

// parseData reads a datum or a verdict.
func (e *Element) parseData(a attrs) {
	typ, v, _ := a.Next()
	switch typ {
	case unix.NFTA_DATA_VALUE:
		e.Data = v
	case unix.NFTA_DATA_VERDICT:
		e.HasVerdict = true
		verdict := attrs(v)
		e.Verdict = Verdict(verdict.Uint32(unix.NFTA_VERDICT_CODE))
		e.Chain = rawnetlink.TextOf(verdict.Find(unix.NFTA_VERDICT_CHAIN))
	}
}
