package nfnetlink

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

// maxTries bounds how often a dump is started.
const maxTries = 5

// Visitor receives a dump. A dump that a commit interrupts is started again,
// up to five tries in all; then it ends with [ErrInterrupted].
//
// If an error or the context ended a dump early, the next call on the connection reads
// the rest of it.
type Visitor[T any] struct {
	// Begin is called before each try: the items that Each got before are void. It may
	// be nil where that does not matter.
	Begin func()
	// Each is called for each item. The memory of the item is reused for the next
	// one. An error ends the dump, which returns it; but ErrInterrupted starts the
	// dump again, for a visitor that has found it to be inconsistent.
	Each func(*T) error
	// Consistent may be nil. It is called at the end of a try that a commit
	// interrupted, and reports whether the dumped objects are known not to have
	// changed. Such a dump is complete, except for tables and chains: the kernel
	// counts the objects of one table together with objects of other tables, and may skip some.
	Consistent func() bool
}

// Collect returns a visitor that gathers the items of one try in a slice.
func Collect[T TableInfo | Chain | RuleInfo | SetInfo](into *[]T) Visitor[T] {
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
	table Table  // the name may be empty
	set   string // for elements
	chain string // for one chain
}

// visit runs a dump for a visitor and passes its messages to each.
func visit[T any](ctx context.Context, c *Conn, q query, v Visitor[T], each func(attrs) error) error {
	if len(q.table.Name) > maxName || len(q.set) > maxName {
		return fmt.Errorf("nfnetlink: %s %v %s: %w", q.op, q.table, q.set, errName)
	}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	for try := 1; ; try++ {
		if err := c.skipUnread(ctx); err != nil {
			return err
		}
		if v.Begin != nil {
			v.Begin()
		}
		changed, err := c.visitOnce(ctx, q, try == maxTries || v.Consistent != nil, each)
		switch {
		case err == nil && (!changed || v.Consistent != nil && v.Consistent()):
			return nil
		case err != nil && !errors.Is(err, ErrInterrupted):
			return err
		case try == maxTries:
			return fmt.Errorf("%w: %s %v %s", ErrInterrupted, q.op, q.table, q.set)
		}
	}
}

// visitOnce starts the dump once and reads it to its end; [ErrInterrupted] means that the
// end is missing. It passes the messages after a change of the ruleset to each only if
// wantRest is true.
func (c *Conn) visitOnce(ctx context.Context, q query, wantRest bool, each func(attrs) error) (changed bool, err error) {
	seq, err := c.ask(ctx, q, unix.NLM_F_DUMP)
	if err != nil {
		return false, err
	}
	first, generation := true, uint16(0)
	err = c.readReplies(ctx, seq, 0, func(m message) error {
		changed = changed || m.Flags&unix.NLM_F_DUMP_INTR != 0
		if m.Type == unix.NLMSG_DONE || m.Type == unix.NLMSG_ERROR {
			return q.ended(m)
		}
		if m.Type>>8 != unix.NFNL_SUBSYS_NFTABLES {
			return nil
		}
		// The kernel does not flag interrupted dumps of elements, but each
		// message has its generation.
		if first {
			first, generation = false, generationOf(m)
		}
		changed = changed || generationOf(m) != generation
		if changed && !wantRest {
			return nil
		}
		return each(attributesOf(m))
	})
	return changed, err
}

// ask sends a request and returns its sequence number.
func (c *Conn) ask(ctx context.Context, q query, flags uint16) (seq uint32, err error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("nfnetlink: %s %v: %w", q.op, q.table, err)
	}
	seq = c.take(1)
	b := appendRequest(c.request[:0], unix.NFNL_SUBSYS_NFTABLES<<8|q.typ, flags, q.table.Family)
	if q.table.Name != "" {
		// The name of the table is in the same attribute in requests of all kinds.
		b = rawnetlink.AppendString(b, unix.NFTA_TABLE_NAME, q.table.Name)
	}
	if q.set != "" {
		b = rawnetlink.AppendString(b, unix.NFTA_SET_ELEM_LIST_SET, q.set)
	}
	if q.chain != "" {
		b = rawnetlink.AppendString(b, unix.NFTA_CHAIN_NAME, q.chain)
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint32(b[8:], seq)
	c.request, c.unread = b, seq
	if err := c.socket.Send(b); err != nil {
		return 0, fmt.Errorf("nfnetlink: %s %v: %w", q.op, q.table, err)
	}
	return seq, nil
}

// ended returns the error of the last message of a dump. The kernel sends EINTR if it
// ends an inconsistent dump early.
func (q query) ended(m message) error {
	r, err := m.Outcome()
	switch {
	case err != nil:
		return err
	case r.Errno == 0:
		return nil
	case r.Errno == unix.EINTR:
		return ErrInterrupted
	default:
		return &Error{Errno: r.Errno, Op: q.op, Table: q.table, Object: cmp.Or(q.set, q.chain), Detail: r.Detail}
	}
}

// readReplies passes the messages of the reply to request seq to each, the last one included.
// If it returns early, the rest stays in the queue, or the kernel still has it, and skipUnread
// reads it.
func (c *Conn) readReplies(ctx context.Context, seq uint32, flags int, each func(message) error) error {
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("nfnetlink: read: %w", err)
		}
		buf, err := c.socket.Receive(flags)
		if err != nil {
			return fmt.Errorf("nfnetlink: %w", err)
		}
		if ended, err := c.handOut(messages(buf), seq, each); err != nil || ended {
			return err
		}
	}
}

// handOut passes those messages that reply to request seq to each, and reports whether the
// last one was among them.
func (c *Conn) handOut(rest messages, seq uint32, each func(message) error) (ended bool, err error) {
	for m, ok := rest.Next(); ok; m, ok = rest.Next() {
		if m.Seq != seq {
			continue
		}
		if ended = m.Type == unix.NLMSG_DONE || m.Type == unix.NLMSG_ERROR || m.Flags&unix.NLM_F_MULTI == 0; ended {
			c.unread = 0
		}
		if err == nil {
			err = each(m) // after an error, read on only to find the end, which is sent once
		}
		if ended {
			return ended, err
		}
	}
	if err == nil {
		err = rawnetlink.End(rest)
	}
	return false, err
}

// skipUnread reads the rest of the replies to an earlier request that ended early: the kernel
// does not start a second dump on the same socket, it drops replies while the receive buffer
// is full, and the replies would be queued before the replies to the next request. All of them are
// in the queue, because the kernel continues a dump whenever a message is read.
func (c *Conn) skipUnread(ctx context.Context) error {
	for range maxStale {
		if c.unread == 0 {
			return nil
		}
		err := c.readReplies(ctx, c.unread, unix.MSG_DONTWAIT, func(message) error { return nil })
		switch {
		case errors.Is(err, unix.EAGAIN):
			c.unread = 0 // The rest was lost.
		case err != nil && !errors.Is(err, unix.ENOBUFS): // ENOBUFS says that some were lost
			return fmt.Errorf("read replies to an earlier request: %w", err)
		}
	}
	return fmt.Errorf("nfnetlink: read replies to an earlier request: %w", unix.ENOBUFS)
}

// Generation returns the generation of the ruleset of the network namespace, a number
// that each commit, by any program and to any table, changes.
func (c *Conn) Generation(ctx context.Context) (id uint32, err error) {
	err = c.get(ctx, query{op: "get generation", typ: unix.NFT_MSG_GETGEN}, func(a attrs) {
		id = a.Uint32(unix.NFTA_GEN_ID)
	})
	return id, err
}

// Chain returns one chain of a table. It is an error if there is no such chain (ENOENT). Unlike
// a dump, it is never interrupted, and takes the same time however many chains there are.
func (c *Conn) Chain(ctx context.Context, t Table, name string) (chain Chain, err error) {
	err = c.get(ctx, query{op: "get chain of", typ: unix.NFT_MSG_GETCHAIN, table: t, chain: name}, func(a attrs) {
		chain = parseChain(a)
	})
	return chain, err
}

// HasTable reports whether there is a table. Like Chain, it is never interrupted.
func (c *Conn) HasTable(ctx context.Context, t Table) (found bool, err error) {
	err = c.get(ctx, query{op: "get", typ: unix.NFT_MSG_GETTABLE, table: t}, func(attrs) { found = true })
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return found, err
}

// get makes a request for one object, and passes the reply to found.
func (c *Conn) get(ctx context.Context, q query, found func(attrs)) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if err := c.skipUnread(ctx); err != nil {
		return err
	}
	seq, err := c.ask(ctx, q, 0)
	if err != nil {
		return err
	}
	return c.readReplies(ctx, seq, 0, func(m message) error {
		if m.Type == unix.NLMSG_ERROR {
			return q.ended(m)
		}
		found(attributesOf(m))
		return nil
	})
}
