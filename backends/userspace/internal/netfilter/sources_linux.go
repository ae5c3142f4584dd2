package netfilter

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/nft"
)

// A list of source ranges is a chain, named by its content, that drops packets from other
// sources. Frontends with the same list share it. So changing the list of a frontend changes
// one element of a map, and both lists may exist at a time, however they overlap.
//
// The ranges are rules, and not an interval set: after a commit, the elements of an interval set
// take effect a moment later than rules and elements of hash sets, and packets of allowed
// clients would be dropped in between.
const sourcesPrefix = "from-"

// rangesPerChain bounds how many rules a packet passes: longer lists are divided among several
// chains, to which the chain of the list leads.
const rangesPerChain = 64

// sourcesForm is the version of the rules that this process writes for a list. Chains that
// another version of the backend has left with another form are replaced.
const sourcesForm = "1"

// Levels of the chains of a list: the chain of the list leads to the chains of its parts.
const (
	levelPart uint8 = iota
	levelList
)

// restriction appends the list of source ranges of a frontend.
func (r *renderer) restriction(at Key, allowed []netip.Prefix, out []Object) []Object {
	ranges := ipaddr.Ranges(allowed)
	name := sourcesName(ranges)
	add := func(level uint8, name string, rules func(chainWriter)) {
		c := &nft.Chain{Rules: func(a *nft.Assembler) {
			w := chainWriter{a, r, nil}
			rules(w)
			w.Rule(w.Drop())
		}}
		// The name identifies the content, so that the rules need not be encoded for the hash.
		v := Value{definition: nft.Hash(sourcesForm, name)}
		out = append(out, Object{Key: Key{kind: kindSources, fam: at.fam, level: level, name: name}, Value: v, Payload: c})
	}
	if len(ranges) <= rangesPerChain {
		add(levelList, name, func(w chainWriter) { w.returnFrom(ranges) })
	} else {
		parts := slices.Collect(slices.Chunk(ranges, rangesPerChain))
		for i, part := range parts {
			add(levelPart, partName(name, i), func(w chainWriter) { w.returnFrom(part) })
		}
		add(levelList, name, func(w chainWriter) {
			for i, part := range parts {
				w.Rule(w.sourceWithin(ipaddr.Range{First: part[0].First, Last: part[len(part)-1].Last}), w.Goto(partName(name, i)))
			}
		})
	}
	at.kind = kindRestricted
	return append(out, Object{Key: at, Value: Value{chain: name}})
}

func (w chainWriter) returnFrom(ranges []ipaddr.Range) {
	for _, r := range ranges {
		w.Rule(w.sourceWithin(r), w.Return())
	}
}

// sourcesName returns the name of the chain of a list. Two lists must not have one name, even if
// users choose their content on purpose; so the name has a cryptographic hash.
func sourcesName(ranges []ipaddr.Range) string {
	var content []byte
	for _, r := range ranges {
		content = append(append(content, r.First.AsSlice()...), r.Last.AsSlice()...)
	}
	sum := sha256.Sum256(content)
	return sourcesPrefix + hex.EncodeToString(sum[:16])
}

func partName(list string, i int) string { return fmt.Sprintf("%s-%d", list, i) }
