package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
)

// Chain is a chain to write.
type Chain struct {
	// Base is the hook of a base chain, zero for a chain to which other chains jump.
	Base nfnetlink.BaseChain
	// Mark is the mark of the [Assembler].
	Mark uint32
	// Rules writes the rules. Chains with equal hashes in ChainOp must have equal rules.
	Rules func(*Assembler)
}

// ChainOp is an operation on the chain of some name.
type ChainOp struct {
	Kind backends.OpKind
	Name string
	// Hash is written into the tags of the rules.
	Hash uint64
	// Chain is the chain to write; nil for [backends.Remove].
	Chain *Chain
}

// Write adds the operation to a batch, and returns how many chains and rules it writes
// and removes. To replace a base chain, it deletes the chain and adds it again.
func (o *ChainOp) Write(b *nfnetlink.Batch, t nfnetlink.Table) (count int, err error) {
	if o.Kind != backends.Add {
		b.FlushChain(t, o.Name)
	}
	if o.Kind == backends.Remove {
		b.DelChain(t, o.Name)
		return 1, nil
	}
	if o.Chain == nil {
		return 0, fmt.Errorf("chain %s: no definition", o.Name)
	}
	rules, err := o.Chain.assemble(t.Family)
	if err != nil {
		return 0, fmt.Errorf("chain %s: %w", o.Name, err)
	}
	base := o.Chain.Base.Type != ""
	if base && o.Kind == backends.Replace {
		b.DelChain(t, o.Name)
	}
	if base || o.Kind == backends.Add {
		b.AddChain(t, nfnetlink.Chain{Name: o.Name, Base: o.Chain.Base})
	}
	own := tag{hash: o.Hash, chain: nameTag(o.Name), n: uint16(len(rules))}
	var buf [tagSize + 2]byte
	for i, r := range rules {
		own.i = uint16(i)
		b.AddRule(t, o.Name, r, own.append(buf[:0]))
	}
	return 1 + len(rules), nil
}

func (c *Chain) assemble(fam nfnetlink.Family) ([]Statement, error) {
	a := Assembler{Family: fam, Mark: c.Mark}
	c.Rules(&a)
	return a.rules, a.err
}

// Hash returns a hash of the chain's definition in a table of some family. It ignores
// errors of the rules, which Write returns.
func (c *Chain) Hash(fam nfnetlink.Family) uint64 {
	parts := []string{fmt.Sprintf("%d %+v", fam, c.Base)}
	rules, _ := c.assemble(fam)
	for _, r := range rules {
		parts = append(parts, string(r))
	}
	return Hash(parts...)
}

// SetHash returns a hash of a set's definition.
func SetHash(s nfnetlink.SetSpec) uint64 { return Hash(fmt.Sprintf("%+v", s)) }

// Hash returns a hash of strings, which is the same in every process.
func Hash(parts ...string) uint64 {
	h := uint64(fnvOffset64)
	for _, p := range parts {
		for shift := 24; shift >= 0; shift -= 8 { // the length, so that ("ab", "c") and ("a", "bc") differ
			h = (h ^ uint64(byte(len(p)>>shift))) * fnvPrime64
		}
		for i := range len(p) {
			h = (h ^ uint64(p[i])) * fnvPrime64
		}
	}
	return h
}

// The parameters of FNV-1a, written out because hash/fnv allocates.
const (
	fnvOffset64 = 14695981039346656037
	fnvPrime64  = 1099511628211
)

// tag is the information that a rule carries in its user data: the hash of its chain, its
// index i among the n rules of the chain, and the nameTag of the chain when it was written.
type tag struct {
	hash  uint64
	chain uint32
	i, n  uint16
}

const tagSize = 16

// append appends a tag as user data.
func (t tag) append(b []byte) []byte {
	var text [tagSize]byte
	binary.BigEndian.PutUint64(text[:], t.hash)
	binary.BigEndian.PutUint32(text[8:], t.chain)
	binary.BigEndian.PutUint16(text[12:], t.i)
	binary.BigEndian.PutUint16(text[14:], t.n)
	return nfnetlink.AppendTag(b, text[:])
}

func parseTag(s string) (t tag, ok bool) {
	if len(s) != tagSize {
		return tag{}, false
	}
	b := []byte(s)
	return tag{
		hash: binary.BigEndian.Uint64(b), chain: binary.BigEndian.Uint32(b[8:]),
		i: binary.BigEndian.Uint16(b[12:]), n: binary.BigEndian.Uint16(b[14:]),
	}, true
}

// nameTag returns the hash (FNV-1a) that represents the name of a chain in the tags of its
// rules.
func nameTag(name string) uint32 {
	h := uint32(2166136261)
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return h
}
