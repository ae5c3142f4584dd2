package nfnetlink

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Family is the address family of a table.
type Family uint8

// The families whose tables this package writes and reads.
const (
	IPv4 Family = unix.NFPROTO_IPV4
	IPv6 Family = unix.NFPROTO_IPV6
)

// String returns nft's word for the family.
func (f Family) String() string {
	switch f {
	case IPv4:
		return "ip"
	case IPv6:
		return "ip6"
	case unix.NFPROTO_INET:
		return "inet"
	default:
		return fmt.Sprintf("family %d", uint8(f))
	}
}

// AddrLen is the length of an address of the family in bytes.
func (f Family) AddrLen() int {
	if f == IPv6 {
		return 16
	}
	return 4
}

// Table identifies a table.
type Table struct {
	Family Family
	Name   string
}

// String returns the table as nft writes it, "ip name".
func (t Table) String() string { return t.Family.String() + " " + t.Name }

// Hook is the hook of the network stack to which a base chain is attached.
type Hook uint32

// The hooks of IPv4 and IPv6.
const (
	Prerouting  Hook = unix.NF_INET_PRE_ROUTING
	Input       Hook = unix.NF_INET_LOCAL_IN
	Forward     Hook = unix.NF_INET_FORWARD
	Output      Hook = unix.NF_INET_LOCAL_OUT
	Postrouting Hook = unix.NF_INET_POST_ROUTING
)

// BaseChain attaches a chain to a hook. The zero value stands for a regular chain, which
// sees only packets of rules that jump to it.
type BaseChain struct {
	// Type is "filter" or "nat"; empty means that the chain is not a base chain.
	Type string
	Hook Hook
	// Priority orders the base chains of a hook, lowest first.
	Priority int32
	// Drop is the policy drop, for packets without a verdict; otherwise the policy is
	// accept.
	Drop bool
}

// Chain is a chain to create, or as the kernel lists it.
type Chain struct {
	// Name must not be a keyword of nft, such as "dnat" or "all": nft would list the
	// chain but could not load the listing. The same holds for tables and sets; no
	// keyword has a hyphen.
	Name string
	Base BaseChain
}

// Verdict is the verdict of a rule, or of an element of a verdict map.
type Verdict int32

// The verdicts. VerdictJump and VerdictGoto need a chain.
const (
	VerdictDrop     Verdict = 0
	VerdictContinue Verdict = unix.NFT_CONTINUE
	VerdictJump     Verdict = unix.NFT_JUMP
	VerdictGoto     Verdict = unix.NFT_GOTO
)

// SetFlags are properties of a set. The flag for maps is derived from the Set.
type SetFlags uint32

// The flags that a Set may have.
const (
	// SetInterval makes the elements of the set ranges of keys of one field.
	SetInterval SetFlags = unix.NFT_SET_INTERVAL
	// SetTimeout lets elements expire.
	SetTimeout SetFlags = unix.NFT_SET_TIMEOUT
	// SetDynamic lets rules add elements.
	SetDynamic SetFlags = unix.NFT_SET_EVAL

	setMap SetFlags = unix.NFT_SET_MAP
)

// Op is an operation on elements, as the number of the kernel's message.
type Op uint16

const (
	// OpAdd creates an element. It keeps one that exists with the same data; one with
	// other data is an error (EEXIST).
	OpAdd Op = unix.NFT_MSG_NEWSETELEM
	// OpDelete removes an element, which must exist (ENOENT).
	OpDelete Op = unix.NFT_MSG_DELSETELEM
	// OpDestroy removes an element if it exists. Linux 6.3 or later.
	OpDestroy Op = 30 // NFT_MSG_DESTROYSETELEM
)

const maxName = 255 // NFT_NAME_MAXLEN with the terminating zero is 256

var errName = errors.New("invalid name")
