package ipset

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/rawnetlink"
)

const (
	// maxList limits the bytes of the entries of one message. The length of an attribute
	// is a 16-bit number.
	maxList = 60_000
	// maxWindow in bytes and maxMessages limit what is sent before the outcome is read. It is
	// sent with one system call, so that all of it or nothing is sent.
	maxWindow   = 128_000
	maxMessages = 128
)

// window is the messages for some consecutive operations.
type window struct {
	requests rawnetlink.Requests
	messages []message
}

// message is the operations of one message. Invalid ones may be between first and last.
type message struct{ first, last int }

// Do carries out operations in order, and returns those that failed, by rising Index. The others
// are carried out. An error means that it is unknown which ones are.
//
// After a failure, Do repeats operations that succeeded. So an entry that several operations of
// one call concern may take its earlier states again for a moment.
func (c *Conn) Do(ctx context.Context, ops []Op) (failed []*Error, err error) {
	for next := 0; next < len(ops); {
		if err := ctx.Err(); err != nil {
			return failed, fmt.Errorf("ipset: %w", err)
		}
		before, from := len(failed), next
		next, failed = c.window.fill(ops, from, failed)
		if failed, err = c.commit(context.WithoutCancel(ctx), ops[:next], from, failed); err != nil {
			return failed, fmt.Errorf("ipset: %w", err)
		}
		slices.SortFunc(failed[before:], func(a, b *Error) int { return a.Index - b.Index })
	}
	return failed, nil
}

// commit sends the window of ops[from:].
func (c *Conn) commit(ctx context.Context, ops []Op, from int, failed []*Error) ([]*Error, error) {
	refused, err := c.netlink.Do(ctx, &c.window.requests)
	if err != nil || len(refused) == 0 {
		return failed, err
	}
	if !c.window.isExact(refused) {
		c.window.fillSingly(ops, from)
		if refused, err = c.netlink.Do(ctx, &c.window.requests); err != nil {
			return failed, err
		}
	}
	for i := range refused {
		at := c.window.messages[refused[i].Index].first
		failed = append(failed, failure(ops, at, meaning(&refused[i])))
	}
	return failed, nil
}

func failure(ops []Op, i int, err error) *Error {
	e := &Error{Action: "add", Set: ops[i].Set, Index: i, Entry: ops[i].Entry, Err: err}
	if ops[i].Delete {
		e.Action = "delete"
	}
	return e
}

// isExact reports whether each refused message has a single operation, so that no other
// operation was left out.
func (w *window) isExact(refused []rawnetlink.Failure) bool {
	for i := range refused {
		if m := w.messages[refused[i].Index]; m.first != m.last {
			return false
		}
	}
	return true
}

func (w *window) reset() {
	w.requests.Reset()
	w.messages = w.messages[:0]
}

// fill writes operations from an index on, until the window is full, and returns the index of
// the next one. It appends invalid operations to failed.
func (w *window) fill(ops []Op, from int, failed []*Error) (int, []*Error) {
	w.reset()
	var l list
	i := from
	for ; i < len(ops); i++ {
		if err := ops[i].check(); err != nil {
			failed = append(failed, failure(ops, i, err))
			continue
		}
		if !l.takes(&ops[i]) {
			l.close(w)
			if len(l.b) > maxWindow-maxList || len(w.messages) == maxMessages {
				return i, failed
			}
			l.open(w, &ops[i], i)
		}
		l.add(&ops[i], i)
	}
	l.close(w)
	return i, failed
}

// fillSingly writes each valid operation from an index on into a message of its own.
func (w *window) fillSingly(ops []Op, from int) {
	w.reset()
	for i := from; i < len(ops); i++ {
		if ops[i].check() != nil {
			continue
		}
		var l list
		l.open(w, &ops[i], i)
		l.add(&ops[i], i)
		l.close(w)
	}
}

func (o *Op) check() error {
	if err := checkName(o.Set); err != nil {
		return err
	}
	return o.Entry.check()
}

// list is a message that is being written; the zero value is none.
type list struct {
	b       []byte
	op      *Op // one of its operations; nil if the list is not open
	entries int // offset
	message message
}

// takes reports whether the list may have another operation.
func (l *list) takes(o *Op) bool {
	return l.op != nil && l.op.Set == o.Set && l.op.Delete == o.Delete && len(l.b)-l.entries <= maxList-maxEntry
}

// maxEntry is the length in bytes of the longest entry, rounded up.
const maxEntry = 128

func (l *list) open(w *window, o *Op, i int) {
	command := uint16(cmdAdd)
	if o.Delete {
		command = cmdDel
	}
	l.b = begin(&w.requests, command, 0, o.Set)
	// The kernel requires a line number beside a list.
	l.b = appendUint32(l.b, attrLine, 0)
	l.b, l.entries = rawnetlink.Nest(l.b, attrEntries)
	l.op, l.message = o, message{first: i}
}

func (l *list) add(o *Op, i int) {
	l.b = appendEntry(l.b, &o.Entry, o.Delete)
	l.message.last = i
}

func (l *list) close(w *window) {
	if l.op == nil {
		return
	}
	rawnetlink.Close(l.b, l.entries)
	w.requests.End(l.b)
	w.messages = append(w.messages, l.message)
	l.op = nil
}

// Entries passes the entries of a set to each, until that returns an error; each must not use
// the connection. The documentation of the package says what Entries returns of a set that
// changes meanwhile. Those of a set of another type have what they share with [Entry], such as only
// a port. If the set does not exist, the error wraps [ErrNotExist].
func (c *Conn) Entries(ctx context.Context, set string, each func(Entry) error) error {
	fail := func(err error) error { return &Error{Action: "list", Set: set, Err: err} }
	if err := checkName(set); err != nil {
		return fail(err)
	}
	var stopped error
	err := c.ask(ctx, request{command: cmdList, flags: unix.NLM_F_DUMP, set: set}, func(a rawnetlink.Attrs) error {
		stopped = eachEntry(a.Find(attrEntries), each)
		return stopped
	})
	if err != nil && stopped == nil {
		err = meaning(err)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// eachEntry reads a list of entries.
func eachEntry(a rawnetlink.Attrs, each func(Entry) error) error {
	for {
		_, v, ok := a.Next()
		if !ok {
			return rawnetlink.End(a)
		}
		e, err := parseEntry(v)
		if err == nil {
			err = each(e)
		}
		if err != nil {
			return err
		}
	}
}
