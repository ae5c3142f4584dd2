package nft

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

// Statement is a rule or a part of one: expressions, encoded for the kernel.
type Statement []byte

// Assembler writes the rules of one chain of a table of Family. Mark may be zero for
// rules that neither set nor match it. The Assembler keeps the first error.
type Assembler struct {
	Family nfnetlink.Family
	// Mark is the bit of packet and connection marks that belongs to the backend.
	Mark  uint32
	rules []Statement
	err   error
}

// Rule adds a rule that consists of some statements.
func (a *Assembler) Rule(parts ...Statement) { a.rules = append(a.rules, slices.Concat(parts...)) }

// Encode returns the statement that consists of some expressions.
func (a *Assembler) Encode(es ...expr.Any) Statement {
	var s Statement
	for _, e := range es {
		b, err := expr.Marshal(byte(a.Family), e)
		if err != nil && a.err == nil {
			a.err = fmt.Errorf("encoding %T: %w", e, err)
		}
		s = rawnetlink.AppendAttr(s, unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, b)
	}
	return s
}

// Join returns the statement that consists of other statements.
func Join(parts ...Statement) Statement { return slices.Concat(parts...) }

func bigEndian(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

func nativeEndian(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
