package nfnetlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// maxTries bounds how often a dump is started.
const maxTries = 5

// Visitor receives a dump. A dump that a commit interrupts is started again,
// up to five tries in all; then it ends with [ErrInterrupted].
//
// What is left of a dump that an error or the context ended is read when the
// connection is used next.
type Visitor[T any] struct {
	// Begin is called before each try: what Each got before is void. It may
	// be nil where that does not matter.
	Begin func()
	// Each is called for each item. The item is used again for the next
	// one. An error ends the dump, which returns it; but ErrInterrupted
	// has it started again, for a visitor that finds that it cannot be
	// right.
	Each func(*T) error
	// Consistent, unless it is nil, is asked at the end of a try that a commit
	// came between: whether what was dumped is known not to have changed. Such
	// a dump is whole, but for tables and chains: the kernel counts those of
	// one table with those of others, and may pass some over.
	Consistent func() bool
}

// Collect returns a visitor that gathers the items of one try in a slice.
func Collect[T TableInfo | ChainInfo | RuleInfo | SetInfo](into *[]T) Visitor[T] {
	return Visitor[T]{
		Begin: func() { *into = (*into)[:0] },
		Each: func(item *T) error {
			*into = append(*into, *item)
			return nil
		},
	}
}

// query is a request for a dump.
type query struct {
	op    string
	typ   uint16
	table Table // the name may be empty
	name  string
	attr  uint16 // of name; 0 is none
}

// encode writes the request into the buffer of the connection.
func (c *Conn) encode(q query, flags uint16, seq uint32) []byte {
	b := binary.NativeEndian.AppendUint32(c.request[:0], 0)
	b = binary.NativeEndian.AppendUint16(b, unix.NFNL_SUBSYS_NFTABLES<<8|q.typ)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = append(b, 0, 0, 0, 0, byte(q.table.Family), unix.NFNETLINK_V0, 0, 0)
	if q.table.Name != "" {
		// The name of the table has this number in requests of all kinds.
		b = appendString(b, unix.NFTA_TABLE_NAME, q.table.Name)
	}
	if q.attr != 0 {
		b = appendString(b, q.attr, q.name)
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	c.request = b
	return b
}

// reader is a [Visitor] of messages.
type reader struct {
	begin      func()
	consistent func() bool
	each       func(attrs) error
}

// started is called before each try.
func (r *reader) started() {
	if r.begin != nil {
		r.begin()
	}
}

// takes reports whether a dump in some state will do.
func (r *reader) takes(state dumpState) bool {
	return state == dumpWhole || state == dumpInterrupted && r.consistent != nil && r.consistent()
}

// visit runs a dump and gives its messages to a reader.
func (c *Conn) visit(ctx context.Context, q query, r reader) error {
	if len(q.table.Name) > maxName || len(q.name) > maxName {
		return fmt.Errorf("nfnetlink: %s %v %s: %w", q.op, q.table, q.name, errName)
	}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	for try := 1; ; try++ {
		if err := c.settle(ctx); err != nil {
			return err
		}
		r.started()
		state, err := c.visitOnce(ctx, q, try == maxTries || r.consistent != nil, r.each)
		if err != nil || r.takes(state) {
			return err
		}
		if try == maxTries {
			return fmt.Errorf("%w: %s %v %s", ErrInterrupted, q.op, q.table, q.name)
		}
	}
}

// dumpState says what there is of a dump.
type dumpState int

const (
	// dumpWhole: all of it comes from one state of the ruleset.
	dumpWhole dumpState = iota
	// dumpInterrupted: the ruleset changed on the way.
	dumpInterrupted
	// dumpCut: the end is missing.
	dumpCut
)

// visitOnce starts the dump once and reads it to its end. What follows after the ruleset
// changed is read but not given to each, unless it is wanted.
func (c *Conn) visitOnce(ctx context.Context, q query, wantRest bool, each func(attrs) error) (state dumpState, err error) {
	seq, err := c.ask(ctx, q, unix.NLM_F_DUMP)
	if err != nil {
		return dumpCut, err
	}
	c.dump = seq
	interrupted, cut, first, generation := false, false, true, uint16(0)
	err = c.readDump(ctx, seq, func(m message) error {
		interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
		if m.typ == unix.NLMSG_DONE || m.typ == unix.NLMSG_ERROR {
			return q.ended(m, &cut)
		}
		if m.typ>>8 != unix.NFNL_SUBSYS_NFTABLES {
			return nil
		}
		// The kernel does not flag dumps of elements, but tells the
		// generation of each message.
		if first {
			first, generation = false, m.generation()
		}
		interrupted = interrupted || m.generation() != generation
		if interrupted && !wantRest {
			return nil
		}
		return each(m.attributes())
	})
	switch {
	case errors.Is(err, ErrInterrupted):
		return dumpCut, nil
	case cut:
		return dumpCut, err
	case interrupted:
		return dumpInterrupted, err
	}
	return dumpWhole, err
}

// ask sends a request and returns its number.
func (c *Conn) ask(ctx context.Context, q query, flags uint16) (seq uint32, err error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("nfnetlink: %s %v: %w", q.op, q.table, err)
	}
	seq = c.take(1)
	if err := c.send(c.encode(q, flags, seq)); err != nil {
		return 0, fmt.Errorf("nfnetlink: %s %v: %w", q.op, q.table, err)
	}
	return seq, nil
}

// ended turns the last message of a dump into its error. A kernel that gives
// up on an inconsistent dump says EINTR.
func (q query) ended(m message, cut *bool) error {
	r, err := parseReply(m)
	switch {
	case err != nil:
		return err
	case r.errno == 0:
		return nil
	case r.errno == unix.EINTR:
		*cut = true
		return nil
	default:
		return &Error{Errno: r.errno, Op: q.op, Table: q.table, Object: q.name, Message: -1, Detail: r.detail}
	}
}

// readDump gives the messages of dump seq to each, the last one included. When
// it returns early, the kernel still holds the rest; settle takes that off.
func (c *Conn) readDump(ctx context.Context, seq uint32, each func(message) error) error {
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("nfnetlink: read: %w", err)
		}
		buf, err := c.receive(0)
		if err != nil {
			return fmt.Errorf("nfnetlink: %w", err)
		}
		if end, err := c.handOut(messages(buf), seq, each); err != nil || end {
			return err
		}
	}
}

// handOut gives those messages that belong to dump seq to each, and says whether
// the last one of the dump was among them.
func (c *Conn) handOut(rest messages, seq uint32, each func(message) error) (end bool, err error) {
	for m, ok := rest.next(); ok; m, ok = rest.next() {
		if m.seq != seq {
			continue
		}
		if end = m.typ == unix.NLMSG_DONE || m.typ == unix.NLMSG_ERROR; end {
			c.dump = 0
		}
		if err == nil {
			err = each(m) // after an error, only the end is looked for: nobody will send it again
		}
		if end {
			return end, err
		}
	}
	if err == nil {
		err = rest.err()
	}
	return false, err
}

// settle reads what is left of a dump that was given up: the kernel starts no
// second one on the same socket, and its messages would stand before the
// answer to a transaction.
func (c *Conn) settle(ctx context.Context) error {
	if c.dump == 0 {
		return nil
	}
	err := c.readDump(ctx, c.dump, func(message) error { return nil })
	if errors.Is(err, unix.EAGAIN) {
		// Nothing is left: its end was lost.
		c.dump = 0
		return nil
	}
	if err != nil {
		return fmt.Errorf("end an earlier dump: %w", err)
	}
	return nil
}

// Generation returns the number of the ruleset of the network namespace. Each
// commit, by any program and to any table, changes it.
func (c *Conn) Generation(ctx context.Context) (uint32, error) {
	if err := c.enter(); err != nil {
		return 0, err
	}
	defer c.leave()
	if err := c.settle(ctx); err != nil {
		return 0, err
	}
	q := query{op: "get generation", typ: unix.NFT_MSG_GETGEN}
	seq, err := c.ask(ctx, q, 0)
	if err != nil {
		return 0, err
	}
	var id uint32
	// A single answer is read like a dump that ends with its first message.
	err = c.readDump(ctx, seq, func(m message) error {
		if m.typ == unix.NLMSG_ERROR {
			return q.ended(m, new(bool))
		}
		id = getUint32(m.attributes().find(unix.NFTA_GEN_ID))
		return errAnswered
	})
	if !errors.Is(err, errAnswered) {
		return 0, err
	}
	return id, nil
}

// errAnswered ends the reading of an answer that is a single message.
var errAnswered = errors.New("answered")
