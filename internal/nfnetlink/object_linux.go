package nfnetlink

import (
	"errors"
	"fmt"
	"strings"

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
	default:
		return fmt.Sprintf("family %d", uint8(f))
	}
}

// Table says which table an object belongs to.
type Table struct {
	Family Family
	Name   string
}

// String returns the table as nft writes it, "ip name".
func (t Table) String() string { return t.Family.String() + " " + t.Name }

// Hook is the place in the network stack that a base chain is attached to.
type Hook uint32

// The hooks of IPv4 and IPv6.
const (
	Prerouting  Hook = unix.NF_INET_PRE_ROUTING
	Input       Hook = unix.NF_INET_LOCAL_IN
	Forward     Hook = unix.NF_INET_FORWARD
	Output      Hook = unix.NF_INET_LOCAL_OUT
	Postrouting Hook = unix.NF_INET_POST_ROUTING
)

// BaseChain is what makes a chain see packets by itself. The zero value is
// that of a chain that is only jumped to.
type BaseChain struct {
	// Type is "filter" or "nat"; empty says that the chain is no base chain.
	Type string
	Hook Hook
	// Priority orders the base chains of a hook; lower ones come first.
	Priority int32
	// Drop says that what no rule decides on is dropped, and not accepted.
	Drop bool
}

// Chain is a chain to create.
type Chain struct {
	// Name must not be a word of nft's language, such as "dnat" or "all":
	// nft would list the chain but could not load the listing. The same
	// goes for tables and sets; a hyphen in the name is a good protection.
	Name string
	Base BaseChain
	// Comment is shown by nft; may be empty.
	Comment string
}

// Verdict is what an element of a verdict map decides.
type Verdict int32

// The verdicts. VerdictJump and VerdictGoto need a chain.
const (
	VerdictDrop     Verdict = 0
	VerdictAccept   Verdict = 1
	VerdictContinue Verdict = unix.NFT_CONTINUE
	VerdictJump     Verdict = unix.NFT_JUMP
	VerdictGoto     Verdict = unix.NFT_GOTO
	VerdictReturn   Verdict = unix.NFT_RETURN
)

// SetFlags are properties of a set. Whether it is a map, anonymous, or a
// concatenation of ranges is derived from the Set.
type SetFlags uint32

// The properties that a Set may ask for.
const (
	// SetConstant forbids changes once a rule uses the set.
	SetConstant SetFlags = unix.NFT_SET_CONSTANT
	// SetInterval makes the set hold ranges of keys.
	SetInterval SetFlags = unix.NFT_SET_INTERVAL
	// SetTimeout lets elements expire.
	SetTimeout SetFlags = unix.NFT_SET_TIMEOUT
	// SetDynamic lets rules add elements.
	SetDynamic SetFlags = unix.NFT_SET_EVAL

	setAnonymous SetFlags = unix.NFT_SET_ANONYMOUS
	setMap       SetFlags = unix.NFT_SET_MAP
	setConcat    SetFlags = 0x80 // NFT_SET_CONCAT
)

// Op is what to do with elements.
type Op uint8

const (
	// OpAdd creates an element. One that exists with the same data is left
	// as it is, one with other data is an error (EEXIST).
	OpAdd Op = iota
	// OpDelete removes an element, which must exist (ENOENT).
	OpDelete
	// OpDestroy removes an element if it exists. Linux 6.3 or later.
	OpDestroy
)

const (
	maxName    = 255 // NFT_NAME_MAXLEN with the terminating zero is 256
	maxComment = 127 // what nft itself accepts
)

var (
	errName    = errors.New("no name that nft can read back")
	errComment = errors.New("no comment that nft can read back")
)

// checkName refuses names that the kernel would take but nft could not load
// again from its own listing. The words of nft's language are not among them:
// there are hundreds and each version has more.
func checkName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("%q: %w", name, errName)
	}
	for i, c := range []byte(name) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (i == 0 || (c < '0' || c > '9') && !strings.ContainsRune(`/\_.-`, rune(c))) {
			return fmt.Errorf("%q: %w", name, errName)
		}
	}
	return nil
}

// checkComment refuses comments that would end nft's quotes or its line.
func checkComment(comment string) error {
	bad := func(r rune) bool { return r == '"' || r < ' ' || r == 0x7f }
	if len(comment) > maxComment || strings.ContainsFunc(comment, bad) {
		return fmt.Errorf("%q: %w", comment, errComment)
	}
	return nil
}
