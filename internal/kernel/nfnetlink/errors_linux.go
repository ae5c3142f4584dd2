package nfnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

var (
	// ErrUnknownOutcome reports that a transaction was sent and the reply is missing:
	// it may have been applied or not. Read the ruleset.
	ErrUnknownOutcome = errors.New("nfnetlink: the outcome of the transaction is unknown")
	// ErrInterrupted reports that commits, by any program in the network namespace,
	// interrupted each try of a dump. The visitor has got the last try to its end; if
	// the commits changed the dumped objects, items may be missing or duplicated.
	ErrInterrupted = errors.New("nfnetlink: the dump was interrupted by other commits")
	// ErrBusy reports that a connection was used during another call on it: by another
	// goroutine, or by the visitor of a dump.
	ErrBusy = errors.New("nfnetlink: the connection is in use")
	// ErrClosed reports that the connection has been closed.
	ErrClosed = errors.New("nfnetlink: the connection is closed")
)

// SizeError reports that a batch does not fit into the send buffer of the connection.
// Nothing was sent.
type SizeError struct {
	Size, Max int // bytes
}

// Error returns both sizes.
func (e *SizeError) Error() string {
	return fmt.Sprintf("nfnetlink: transaction of %d bytes exceeds the send buffer of %d bytes", e.Size, e.Max)
}

// Error is a refusal by the kernel. A refused transaction changed nothing.
type Error struct {
	// Errno is the kernel's error.
	Errno unix.Errno
	// Op is the refused operation, such as "add elements to" or "list sets of".
	Op string
	// Table is the table of the operation, zero if the kernel refused the transaction
	// as a whole.
	Table Table
	// Object is the name of the chain or set; for a rule, of its chain.
	Object string
	// Key is the key of the wrong element, if the kernel named it.
	Key []byte
	// Attr is the number of the wrong attribute, perhaps a nested one, of a message without
	// elements; zero if the kernel named none.
	Attr uint16
	// Detail is the kernel's own text, if any.
	Detail string
}

// Error names the operation, the object, the errno and the kernel's text.
func (e *Error) Error() string {
	var s strings.Builder
	fmt.Fprintf(&s, "nfnetlink: %s", e.Op)
	if e.Table != (Table{}) {
		fmt.Fprintf(&s, " %v", e.Table)
	}
	if e.Object != "" {
		fmt.Fprintf(&s, " %s", e.Object)
	}
	if e.Key != nil {
		fmt.Fprintf(&s, " key %x", e.Key)
	}
	fmt.Fprintf(&s, ": %v", e.Errno)
	if e.Detail != "" {
		fmt.Fprintf(&s, " (%s)", e.Detail)
	}
	return s.String()
}

// Unwrap returns the errno, for errors.Is.
func (e *Error) Unwrap() error { return e.Errno }

// describe makes an error about message i of the batch, counted as in at.
func (b *Batch) describe(i uint32, r outcome) *Error {
	e := &Error{Errno: r.Errno, Op: "commit", Detail: r.Detail}
	if i == 0 || int(i) > b.messages {
		return e
	}
	msg := b.at(i)
	typ := binary.NativeEndian.Uint16(msg[4:]) & 0xff
	a := attrs(msg[headerLen:])
	op, name := messageKind(typ)
	e.Op, e.Object = op, a.Text(name) // no attribute has number zero
	e.Table = Table{Family: Family(msg[unix.NLMSG_HDRLEN]), Name: a.Text(unix.NFTA_TABLE_NAME)}
	if r.Offset < headerLen || uint64(r.Offset) >= uint64(len(msg)) {
		return e
	}
	wrong := attrs(msg[r.Offset:])
	if slices.Contains([]Op{OpAdd, OpDelete, OpDestroy}, Op(typ)) {
		e.Key = elementKey(wrong)
	} else {
		e.Attr, _, _ = wrong.Next()
	}
	return e
}

// elementKey copies the key of the element that b starts with.
func elementKey(b attrs) []byte {
	typ, v, _ := b.Next()
	if typ != unix.NFTA_LIST_ELEM {
		return nil
	}
	key := attrs(attrs(v).Find(unix.NFTA_SET_ELEM_KEY))
	return append([]byte(nil), key.Find(unix.NFTA_DATA_VALUE)...)
}

// messageKind returns the operation of a message, and the attribute with the name of its
// object, zero for tables.
func messageKind(typ uint16) (op string, nameAttr uint16) {
	switch typ {
	case unix.NFT_MSG_NEWTABLE:
		return "add table", 0
	case unix.NFT_MSG_DELTABLE:
		return "delete table", 0
	case unix.NFT_MSG_NEWCHAIN:
		return "add chain", unix.NFTA_CHAIN_NAME
	case unix.NFT_MSG_DELCHAIN:
		return "delete chain", unix.NFTA_CHAIN_NAME
	case unix.NFT_MSG_NEWRULE:
		return "add rule to", unix.NFTA_RULE_CHAIN
	case unix.NFT_MSG_DELRULE:
		return "delete rules of", unix.NFTA_RULE_CHAIN
	case unix.NFT_MSG_NEWSET:
		return "add set", unix.NFTA_SET_NAME
	case unix.NFT_MSG_DELSET:
		return "delete set", unix.NFTA_SET_NAME
	case unix.NFT_MSG_NEWSETELEM:
		return "add elements to", unix.NFTA_SET_ELEM_LIST_SET
	case unix.NFT_MSG_DELSETELEM:
		return "delete elements of", unix.NFTA_SET_ELEM_LIST_SET
	default: // OpDestroy
		return "destroy elements of", unix.NFTA_SET_ELEM_LIST_SET
	}
}
