package userspace

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// List implements [backends.Target]. It yields an object that was changed with a value that
// no service port renders.
func (k *kernel) List(ctx context.Context) iter.Seq2[object, error] {
	return func(yield func(object, error) bool) {
		if err := k.monitor.Begin(); err != nil {
			yield(object{}, explain(err))
			return
		}
		for _, fam := range allFamilies() {
			l := lister{kernel: k, ctx: ctx, fam: fam}
			if err := l.list(); err != nil {
				yield(object{}, err)
				return
			}
			for _, o := range l.objects {
				if !yield(o, nil) {
					return
				}
			}
		}
	}
}

type lister struct {
	*kernel
	ctx     context.Context
	fam     nfnetlink.Family
	objects []object
}

func (l *lister) add(k key, v value) {
	k.fam = l.fam
	l.objects = append(l.objects, object{Key: k, Value: v})
}

func (l *lister) list() error {
	state, err := l.routes.state(l.fam)
	if err != nil {
		return err
	}
	if state != routesAbsent {
		l.add(key{kind: kindRouting}, value{hash: uint64(routesComplete - state)})
	}
	exists, dormant, err := l.exists(l.ctx, l.fam)
	if err != nil || !exists {
		return err
	}
	if dormant {
		return replace("the table is dormant")
	}
	l.add(key{kind: kindTable}, value{})
	if err := l.chains(); err != nil {
		return explain(err)
	}
	return l.sets()
}

func (l *lister) chains() error {
	var rules []nfnetlink.RuleInfo
	ofRules := nfnetlink.Collect(&rules)
	ofRules.Consistent = l.unchanged
	if err := l.conn.Rules(l.ctx, l.table(l.fam), ofRules); err != nil {
		return l.readable(err, "rules")
	}
	tags, own := map[string][]string{}, map[string]uint32{}
	for i := range rules {
		tags[rules[i].Chain] = append(tags[rules[i].Chain], rules[i].Tag())
	}
	var chains []nfnetlink.ChainInfo
	ofChains := nfnetlink.Collect(&chains)
	ofChains.Consistent = func() bool { return l.unchanged() && nfnetlink.HaveAll(chains, rules) }
	if err := l.conn.Chains(l.ctx, l.table(l.fam), ofChains); err != nil {
		return l.readable(err, "chains")
	}
	for i := range chains {
		name := chains[i].Name
		tags[name], own[name] = append([]string{}, tags[name]...), chainTag(name, chains[i].Base)
	}
	l.sources(tags)
	for name, all := range tags {
		if strings.HasPrefix(name, sourcesPrefix) {
			// Frontends may use the chain, so that it cannot be changed.
			return replace("chain " + name + " lacks rules, or has rules that this backend did not write")
		}
		hash, moved := hashOf(own[name], all)
		if moved {
			// Rules may jump to the chain that were written for another one.
			return replace("chain " + name + " was renamed or moved to another hook")
		}
		l.add(key{kind: kindChain, level: levelOf(name), name: name}, value{hash: hash})
	}
	return nil
}

// unchanged reports whether nobody has changed our tables since the listing began.
func (l *lister) unchanged() bool { return !l.monitor.Noticed() }

// readable turns the interruption of a listing by commits of others into a reason to replace
// the tables.
func (l *lister) readable(err error, what string) error {
	if errors.Is(err, nfnetlink.ErrInterrupted) {
		return fmt.Errorf("userspace: %w: %s: %w", backends.ErrReplace, what, err)
	}
	return err
}

// levelOf gives the level of a chain by its name, or one above all others for a
// chain that is none of ours, so that it goes first.
func levelOf(name string) uint8 {
	switch name {
	case chainPrerouting, chainOutput, chainPostrouting, chainBridged:
		return levelBase
	case chainServices:
		return levelServices
	}
	for _, inside := range actions() {
		for _, outside := range actions() {
			if name == verdictChain(inside, outside) && inside == outside {
				return levelAction
			} else if name == verdictChain(inside, outside) {
				return levelSource
			}
		}
	}
	return levelBase + 1
}

func (l *lister) sets() error {
	var all []nfnetlink.SetInfo
	ofSets := nfnetlink.Collect(&all)
	ofSets.Consistent = l.unchanged
	if err := l.conn.Sets(l.ctx, l.table(l.fam), ofSets); err != nil {
		return explain(l.readable(err, "sets"))
	}
	for i := range all {
		if all[i].Flags&unix.NFT_SET_ANONYMOUS != 0 {
			continue // it is part of a foreign rule, and goes with it
		}
		l.add(key{kind: kindSet, name: all[i].Name}, value{hash: specHash(all[i].SetSpec)})
	}
	for _, s := range sets() {
		for i := range all {
			if all[i].Name != s.Name {
				continue
			}
			if err := l.elements(s.Name); err != nil {
				return explain(err)
			}
		}
	}
	return nil
}

func (l *lister) elements(set string) error {
	before := len(l.objects)
	err := l.conn.Elements(l.ctx, l.table(l.fam), set, nfnetlink.Visitor[nfnetlink.Element]{
		Begin:      func() { l.objects = l.objects[:before] },
		Each:       func(e *nfnetlink.Element) error { return l.element(set, e) },
		Consistent: l.unchanged,
	})
	return l.readable(err, "set "+set)
}

func (l *lister) element(set string, e *nfnetlink.Element) error {
	k, ok := l.readKey(set, e.Key)
	v := value{}
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
		return replace("set " + set + " holds an element that this backend did not write")
	}
	l.add(k, v)
	return nil
}

// replace gives the error by which the tables are made anew, since why.
func replace(why string) error { return fmt.Errorf("userspace: %w: %s", backends.ErrReplace, why) }

// readKey reads the key of an element.
func (l *lister) readKey(set string, b []byte) (k key, ok bool) {
	k.kind = kindFrontend
	n := addrLen(l.fam)
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
	k.proto, k.addr = b[0], netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b[4:]))
	return k, true
}
