package nftables

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// layout numbers the form of what this package writes. Chains of another form,
// which an older or newer program left behind, are replaced.
const layout = "3"

type object = backends.Object[key, value]

// book holds what sets and chains consist of, under the hash by which objects
// speak of them, so that the kernel edge can write what was rendered. Rendering
// and committing never happen at once.
type book struct {
	options Options
	// pages are for the last two nodes: while a node changes, both are rendered.
	pages [2]*page
	names familyNames
	// own are the definitions, of one service port each, that are in use.
	own map[familyName]value
}

// page is the book for one node.
type page struct {
	node     *proxy.Node
	print    string
	options  *Options
	names    *familyNames
	chains   map[definitionID]chainDefinition
	sets     map[definitionID]setDefinition
	verdicts map[verdictQuery]*verdict
}

type definitionID struct {
	fam  family
	name string
	hash value
}

type chainDefinition struct {
	rules [][]byte
	base  *nfnetlink.BaseChain
	// err says why the rules could not be written.
	err error
	// lasting definitions are kept when their chain goes.
	lasting bool
}

func (b *book) page(node *proxy.Node) *page {
	for i, p := range b.pages {
		if p != nil && p.node == node {
			b.pages[0], b.pages[i] = b.pages[i], b.pages[0]
			return p
		}
	}
	p := &page{
		node:     node,
		print:    fmt.Sprintf("%s %+v %x", layout, node.LocalTraffic, b.options.Identity.Mark),
		options:  &b.options,
		names:    &b.names,
		chains:   map[definitionID]chainDefinition{},
		sets:     map[definitionID]setDefinition{},
		verdicts: map[verdictQuery]*verdict{},
	}
	b.pages[0], b.pages[1] = p, b.pages[0]
	return p
}

// chain finds what a chain consists of.
func (b *book) chain(id definitionID) (chainDefinition, error) {
	for _, p := range b.pages {
		if p != nil {
			if d, ok := p.chains[id]; ok {
				return d, d.err
			}
		}
	}
	return chainDefinition{}, fmt.Errorf("chain %s %x is not in the book", id.name, id.hash)
}

// set finds what a set is like.
func (b *book) set(id definitionID) (setDefinition, error) {
	for _, p := range b.pages {
		if p != nil {
			if d, ok := p.sets[id]; ok {
				return d, nil
			}
		}
	}
	return setDefinition{}, fmt.Errorf("set %s %x is not in the book", id.name, id.hash)
}

// settle takes note that a definition is in use, and drops the one that it takes
// the place of, if that was one service port's own.
func (b *book) settle(k key, v value) {
	at := familyName{k.fam, k.name}
	old, had := b.own[at]
	if had && old != v {
		b.drop(k, old)
	}
	if d, err := b.chain(definitionID{k.fam, b.names.of(k.fam).text(k.name), v}); k.kind == kindChain && err == nil && !d.lasting {
		if b.own == nil {
			b.own = map[familyName]value{}
		}
		b.own[at] = v
	}
}

// forget drops the definition of a chain or set that is no more, and its name, if
// it was one service port's own.
func (b *book) forget(k key, v value) {
	delete(b.own, familyName{k.fam, k.name})
	if b.drop(k, v) { // what stands in no book may have the name of something else that does
		b.names.of(k.fam).release(k.name)
	}
}

// drop reports whether there was such a definition.
func (b *book) drop(k key, v value) (own bool) {
	id := definitionID{k.fam, b.names.of(k.fam).text(k.name), v}
	for _, p := range b.pages {
		if p == nil {
			continue
		}
		if d, ok := p.chains[id]; ok && !d.lasting {
			own = true
			delete(p.chains, id)
		}
		if d, ok := p.sets[id]; ok && !d.lasting {
			own = true
			delete(p.sets, id)
		}
	}
	return own
}

// hash stands for everything that a definition is made from.
func (p *page) hash(name, details string) value {
	h := fnv.New64a()
	for _, part := range [...]string{p.print, name, details} {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(part)))
		_, _ = h.Write(n[:]) // a hash does not fail
		_, _ = h.Write([]byte(part))
	}
	return value(h.Sum64())
}

// chainObject gives the object of a chain, and enters its definition unless it
// stands there already. What build writes must follow from the node, the name
// and the details.
func (p *page) chainObject(c chainSpec, build func(*assembler)) object {
	k := key{kind: kindChain, fam: c.fam, level: c.level, name: p.names.of(c.fam).number(c.name)}
	v := p.hash(c.name, c.details)
	id := definitionID{c.fam, c.name, v}
	if _, ok := p.chains[id]; !ok {
		a := &assembler{fam: c.fam, mark: p.options.Identity.Mark}
		build(a)
		p.chains[id] = chainDefinition{rules: a.rules, err: a.err, base: c.base, lasting: c.lasting}
	}
	return object{Key: k, Value: v}
}

type chainSpec struct {
	fam     family
	name    string
	details string
	level   uint8
	base    *nfnetlink.BaseChain
	lasting bool
}
