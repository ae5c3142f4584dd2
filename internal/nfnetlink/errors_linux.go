package nfnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

var (
	// ErrUnknownOutcome says that a transaction was sent and no answer came:
	// it may have been applied or not. Read the ruleset back.
	ErrUnknownOutcome = errors.New("nfnetlink: the outcome of the transaction is not known")
	// ErrInterrupted says that commits, by any program in the network
	// namespace, interrupted a dump each time that it was tried. The visitor
	// has got the last try to its end; if what was dumped is itself what
	// changed, items may be missing or have come twice.
	ErrInterrupted = errors.New("nfnetlink: the dump was interrupted by other commits")
	// ErrBusy says that a connection was used while a call on it was under
	// way: by another goroutine, or by the visitor of a dump.
	ErrBusy = errors.New("nfnetlink: the connection is in use")
	// ErrClosed says that the connection has been closed.
	ErrClosed = errors.New("nfnetlink: the connection is closed")
)

// SizeError says that a batch does not fit into the send buffer of the
// connection. Nothing was sent.
type SizeError struct {
	Size, Max int // bytes
}

// Error gives both sizes.
func (e *SizeError) Error() string {
	return fmt.Sprintf("nfnetlink: a transaction of %d bytes exceeds the send buffer, which takes %d", e.Size, e.Max)
}

// Error is a refusal by the kernel. A refused transaction changed nothing.
type Error struct {
	// Errno is the kernel's error.
	Errno unix.Errno
	// Op is what was refused, such as "add element" or "list sets".
	Op string
	// Table is the table that it was about, zero when it was the
	// transaction as a whole.
	Table Table
	// Object is the name of the chain or set; a rule goes by its chain.
	Object string
	// Key is the key of the element at fault, if the kernel named it.
	Key []byte
	// Message counts the messages of the batch from zero; -1 when the kernel
	// named none.
	Message int
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

// reply is the content of a message that ends an exchange: an error or an
// acknowledgement.
type reply struct {
	errno  unix.Errno
	detail string
	offset uint32 // of the attribute at fault in the message; 0 is none
}

// parseReply decodes NLMSG_ERROR, and NLMSG_DONE, which lacks the header of
// the message that it answers.
func parseReply(m message) (reply, error) {
	if len(m.payload) < 4 {
		return reply{}, errMalformed
	}
	r := reply{errno: unix.Errno(-int32(binary.NativeEndian.Uint32(m.payload)))}
	if m.flags&unix.NLM_F_ACK_TLVS == 0 {
		return r, nil
	}
	skip := 4
	if m.typ == unix.NLMSG_ERROR {
		skip += unix.NLMSG_HDRLEN
		if m.flags&unix.NLM_F_CAPPED == 0 && len(m.payload) >= 8 {
			skip = 4 + align(int(min(binary.NativeEndian.Uint32(m.payload[4:]), maxAttr)))
		}
	}
	a := attrs(m.payload[min(skip, len(m.payload)):])
	for {
		typ, v, ok := a.next()
		if !ok {
			return r, nil
		}
		switch typ {
		case unix.NLMSGERR_ATTR_MSG:
			r.detail = string(getText(v))
		case unix.NLMSGERR_ATTR_OFFS:
			if len(v) >= 4 {
				r.offset = binary.NativeEndian.Uint32(v)
			}
		}
	}
}

// describe makes an error about message i of the batch, counted as in at.
func (b *Batch) describe(i uint32, r reply) *Error {
	e := &Error{Errno: r.errno, Op: "commit", Message: -1, Detail: r.detail}
	if i == 0 || int(i) > b.messages {
		return e
	}
	msg := b.at(i)
	typ := binary.NativeEndian.Uint16(msg[4:]) & 0xff
	a := attrs(msg[headerLen:])
	e.Message = int(i) - 1
	e.Op = opName(typ)
	e.Table = Table{
		Family: Family(msg[unix.NLMSG_HDRLEN]),
		Name:   string(getText(a.find(unix.NFTA_TABLE_NAME))),
	}
	if attr := nameAttr(typ); attr != 0 {
		e.Object = string(getText(a.find(attr)))
	}
	if attr := r.offset; isElement(typ) && attr >= headerLen && uint64(attr) < uint64(len(msg)) {
		e.Key = elementKey(msg[attr:])
	}
	return e
}

// elementKey copies the key of the element that b starts with.
func elementKey(b attrs) []byte {
	typ, v, _ := b.next()
	if typ != unix.NFTA_LIST_ELEM {
		return nil
	}
	key := attrs(attrs(v).find(unix.NFTA_SET_ELEM_KEY))
	return append([]byte(nil), key.find(unix.NFTA_DATA_VALUE)...)
}

func isElement(typ uint16) bool {
	return typ == unix.NFT_MSG_NEWSETELEM || typ == unix.NFT_MSG_DELSETELEM || typ == msgDestroySetElem
}

// nameAttr returns the attribute with the name of the object that a message is
// about, zero for tables.
func nameAttr(typ uint16) uint16 {
	switch typ {
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		return unix.NFTA_CHAIN_NAME
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		return unix.NFTA_RULE_CHAIN
	case unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET:
		return unix.NFTA_SET_NAME
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM, msgDestroySetElem:
		return unix.NFTA_SET_ELEM_LIST_SET
	default:
		return 0
	}
}

func opName(typ uint16) string {
	switch typ {
	case unix.NFT_MSG_NEWTABLE:
		return "add table"
	case unix.NFT_MSG_DELTABLE:
		return "delete table"
	case unix.NFT_MSG_NEWCHAIN:
		return "add chain"
	case unix.NFT_MSG_DELCHAIN:
		return "delete chain"
	case unix.NFT_MSG_NEWRULE:
		return "add rule to"
	case unix.NFT_MSG_DELRULE:
		return "delete rules of"
	case unix.NFT_MSG_NEWSET:
		return "add set"
	case unix.NFT_MSG_DELSET:
		return "delete set"
	case unix.NFT_MSG_NEWSETELEM:
		return "add elements to"
	case unix.NFT_MSG_DELSETELEM:
		return "delete elements of"
	case msgDestroySetElem:
		return "destroy elements of"
	default:
		return "commit"
	}
}
