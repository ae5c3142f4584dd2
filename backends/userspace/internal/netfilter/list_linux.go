package netfilter

import (
	"context"
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/proxy"
)

// List implements [backends.Target]. An object that another program has changed has a value
// that no service port renders.
func (c *Capture) List(ctx context.Context) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		if err := c.Begin(); err != nil {
			yield(Object{}, err)
			return
		}
		c.found.Take() // of an earlier listing
		for _, f := range ipaddr.Families() {
			l := lister{Capture: c, ctx: ctx, fam: nft.FamilyOf(f)}
			if err := l.list(); err != nil {
				yield(Object{}, err)
				return
			}
			l.find(f)
			for _, o := range l.objects {
				if !yield(o, nil) {
					return
				}
			}
		}
	}
}

type lister struct {
	*Capture
	ctx     context.Context
	fam     nfnetlink.Family
	objects []Object
	seen    map[Key]bool // elements of the set that is being listed
}

// find records the frontends of a family.
func (l *lister) find(f v1.IPFamily) {
	for i := range l.objects {
		if k := &l.objects[i].Key; k.kind == kindFrontend {
			l.found.Add(f, k.protocol, k.addr)
		}
	}
}

func (l *lister) add(k Key, v Value) {
	k.fam = l.fam
	l.objects = append(l.objects, Object{Key: k, Value: v})
}

func (l *lister) list() error {
	state, err := l.routes.state(familyOf(l.fam))
	if err != nil {
		return err
	}
	if state != routingAbsent {
		l.add(Key{kind: kindRouting}, Value{routing: state})
	}
	exists, err := l.exists(l.ctx, l.fam)
	if err != nil || !exists {
		return err
	}
	l.add(Key{kind: kindTable}, Value{})
	if err := l.chains(); err != nil {
		return err
	}
	return l.sets()
}

// chains lists the chains. A renamed chain, or one with another hook, must be replaced: rules
// that lead to it may have been written for another chain.
func (l *lister) chains() error {
	chains, err := l.Chains(l.ctx, l.table(l.fam))
	if err != nil {
		return err
	}
	own := map[string]Object{}
	for _, o := range l.renderer.chains(&proxy.Node{}, familyOf(l.fam)) {
		own[o.Key.name] = o
	}
	for i := range chains {
		c := &chains[i]
		key, base := Key{kind: kindChain, level: levelForeign, name: c.Name}, c.Base
		if o, ok := own[c.Name]; ok {
			chain, _ := o.Payload.(*nft.Chain)
			key, base = o.Key, chain.Base
		} else if strings.HasPrefix(c.Name, sourcesPrefix) {
			key, base = sourcesKey(c.Name), nfnetlink.BaseChain{}
		}
		if c.Renamed || c.Base != base {
			return nft.MustReplace("chain " + c.Name + ", which had another name or hook,")
		}
		l.add(key, Value{definition: c.Hash})
	}
	return nil
}

// sourcesKey returns the key of a chain of source ranges.
func sourcesKey(name string) Key {
	k := Key{kind: kindSources, level: levelList, name: name}
	if strings.Count(name, "-") > 1 {
		k.level = levelPart
	}
	return k
}

func (l *lister) sets() error {
	all, err := l.Sets(l.ctx, l.table(l.fam))
	if err != nil {
		return err
	}
	for i := range all {
		l.add(Key{kind: kindSet, name: all[i].Name}, Value{definition: nft.SetHash(all[i].SetSpec)})
		if !slices.ContainsFunc(sets(), func(s nfnetlink.Set) bool { return s.Name == all[i].Name }) {
			continue
		}
		if err := l.elements(all[i].Name); err != nil {
			return err
		}
	}
	return nil
}

func (l *lister) elements(set string) error {
	before := len(l.objects)
	return l.Elements(l.ctx, l.table(l.fam), set,
		func() { l.objects, l.seen = l.objects[:before], map[Key]bool{} },
		func(e *nfnetlink.Element) error { return l.element(set, e) })
}

func (l *lister) element(set string, e *nfnetlink.Element) error {
	k, ok := l.readKey(set, e.Key)
	v := Value{}
	switch set {
	case setFrontends, setNodePorts:
		if v.chain = string(e.Chain); e.Verdict != nfnetlink.VerdictGoto {
			v.chain = ""
		}
	case setRestricted:
		k.kind = kindRestricted
		if v.chain = string(e.Chain); e.Verdict != nfnetlink.VerdictJump {
			v.chain = ""
		}
	}
	if !ok {
		return nft.MustReplace("set " + set + ", with an element that this backend did not write,")
	}
	if k.fam = l.fam; l.seen[k] {
		// The kernel is growing the set. It then lists some elements twice, and leaves
		// out as many others.
		return nfnetlink.ErrInterrupted
	}
	l.seen[k] = true
	l.add(k, v)
	return nil
}

// readKey reads the key of an element.
func (l *lister) readKey(set string, b []byte) (k Key, ok bool) {
	k.kind = kindFrontend
	n := l.fam.AddrLen()
	var addr netip.Addr
	if set != setNodePorts {
		if len(b) < n {
			return k, false
		}
		addr, _ = netip.AddrFromSlice(b[:n])
		b = b[n:]
	}
	if set == setClusterIPs {
		k.kind, k.addr = kindClusterIP, netip.AddrPortFrom(addr, 0)
		return k, true
	}
	if len(b) < 8 {
		return k, false
	}
	k.protocol, k.addr = b[0], netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b[4:]))
	return k, true
}
