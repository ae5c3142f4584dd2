package userspace

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// A list of source ranges is a chain, named by its content, that drops what comes from
// elsewhere. It is never changed, and frontends with the same list share it. So a
// frontend goes from one list to another by one element of a map, and both lists may
// be there at a time however they overlap.
//
// The ranges are rules, and no set of intervals: the kernel shows the elements of such
// a set to packets a moment later than the rules and the elements of hashes that are
// committed with them, and would drop what comes in between.
const sourcesPrefix = "from-"

// rangesPerChain bounds how many rules a packet passes: the ranges of longer lists are
// in chains of their own, to which a chain of their beginnings leads.
const rangesPerChain = 64

// restriction appends the list of source ranges of a frontend. The name of the list
// is its content: first and last address of each range.
func restriction(at key, sources []netip.Prefix, out []object) []object {
	var content strings.Builder
	for _, r := range ipaddr.Ranges(sources) {
		content.Write(r.First.AsSlice())
		content.Write(r.Last.AsSlice())
	}
	list := key{kind: kindSources, fam: at.fam, name: content.String()}
	at.kind = kindRestricted
	return append(out, object{Key: list}, object{Key: at, Value: value{chain: sourcesName(list.name)}})
}

// sourcesName names the chain of a list. Users choose the content, so that two
// contents must not have one name.
func sourcesName(content string) string {
	sum := sha256.Sum256([]byte(content))
	return sourcesPrefix + hex.EncodeToString(sum[:16])
}

// sourcesRule is a rule of the chain of a list, with the tag by which it is known again.
type sourcesRule struct {
	rule rule
	tag  string
}

const tagOthers = "others"

// sourcesChains gives the chains of a list, each after those that it leads to. That of
// the list itself is the last one.
func sourcesChains(list key) (names []string, rules map[string][]sourcesRule) {
	s, width := statements{fam: list.fam}, 2*addrLen(list.fam)
	name := sourcesName(list.name)
	others := sourcesRule{rule{&expr.Verdict{Kind: expr.VerdictDrop}}, tagOthers}
	rules = map[string][]sourcesRule{}
	var top []sourcesRule
	for block := range slices.Chunk([]byte(list.name), width*rangesPerChain) {
		var leaf []sourcesRule
		for r := range slices.Chunk(block, width) {
			leaf = append(leaf, s.sourceWithin(r[:width/2], r[width/2:], rule{&expr.Verdict{Kind: expr.VerdictReturn}}))
		}
		if len(list.name) <= width*rangesPerChain {
			top = leaf
			continue
		}
		at := fmt.Sprintf("%s-%d", name, len(names))
		names, rules[at] = append(names, at), append(leaf, others)
		top = append(top, s.sourceWithin(block[:width/2], block[len(block)-width/2:], to(expr.VerdictGoto, at)))
	}
	rules[name] = append(top, others)
	return append(names, name), rules
}

// sourceWithin does something with packets from a range.
func (s *statements) sourceWithin(first, last []byte, then rule) sourcesRule {
	from, _ := netip.AddrFromSlice(first)
	until, _ := netip.AddrFromSlice(last)
	within := rule{s.addr(reg, true), &expr.Range{Op: expr.CmpOpEq, Register: reg, FromData: first, ToData: last}}
	return sourcesRule{join(within, then), from.String() + "-" + until.String()}
}

func (w *writer) writeSources(o *op) {
	t := w.table(o.Key.fam)
	names, rules := sourcesChains(o.Key)
	if o.Kind == backends.Remove {
		for _, name := range slices.Backward(names) {
			w.batch.FlushChain(t, name)
			w.batch.DelChain(t, name)
		}
		return
	}
	for _, name := range names {
		w.batch.AddChain(t, nfnetlink.Chain{Name: name})
		for _, r := range rules[name] {
			w.batch.AddRule(t, name, r.rule, nfnetlink.AppendTag(nil, []byte(r.tag)))
		}
	}
}

func addrLen(fam nfnetlink.Family) int {
	if fam == nfnetlink.IPv6 {
		return 16
	}
	return 4
}

// sources finds the lists of source ranges among chains, by the tags of their rules, and
// gives their objects. It takes their chains away.
func (l *lister) sources(tags map[string][]string) {
	for name := range tags {
		if strings.Count(name, "-") != 1 || !strings.HasPrefix(name, sourcesPrefix) {
			continue
		}
		list := key{kind: kindSources, fam: l.fam}
		if _, divided := tags[name+"-0"]; !divided {
			list.name = contentOf(tags[name])
		}
		for i := 0; tags[fmt.Sprintf("%s-%d", name, i)] != nil; i++ {
			list.name += contentOf(tags[fmt.Sprintf("%s-%d", name, i)])
		}
		if names, rules := sourcesChains(list); names[len(names)-1] == name && areThere(rules, tags) {
			l.add(list, value{})
			for _, n := range names {
				delete(tags, n)
			}
		}
	}
}

// contentOf reads tags that name ranges.
func contentOf(tags []string) string {
	var content strings.Builder
	for _, c := range tags {
		first, last, _ := strings.Cut(c, "-")
		from, _ := netip.ParseAddr(first)
		until, err := netip.ParseAddr(last)
		if err == nil {
			content.Write(from.AsSlice())
			content.Write(until.AsSlice())
		}
	}
	return content.String()
}

// areThere reports whether chains have the rules that they are to have, by their tags.
func areThere(rules map[string][]sourcesRule, tags map[string][]string) bool {
	for name, want := range rules {
		if !slices.EqualFunc(want, tags[name], func(r sourcesRule, c string) bool { return r.tag == c }) {
			return false
		}
	}
	return true
}
