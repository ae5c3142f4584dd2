package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// List implements [backends.Target]. What it cannot make sense of, it yields
// with a value that nobody wants, so that it is replaced or removed.
func (k *kernel) List(ctx context.Context) iter.Seq2[object, error] {
	return func(yield func(object, error) bool) {
		k.forgetSlots()
		k.places = places{}
		for _, fam := range []family{ipv4, ipv6} {
			l := lister{kernel: k, ctx: ctx, fam: fam, yield: yield}
			err := l.list()
			if err != nil && !errors.Is(err, errStopped) {
				yield(object{}, err)
			}
			if err != nil {
				return
			}
		}
	}
}

type lister struct {
	*kernel
	ctx   context.Context
	fam   family
	yield func(object, error) bool
	// objects are those of the part that is being listed: it may have to be
	// listed again from its beginning.
	objects []object
	indexes []uint32
}

var errStopped = errors.New("nobody wants more objects")

// flush hands the objects of a finished part over.
func (l *lister) flush() error {
	for _, o := range l.objects {
		if !l.yield(o, nil) {
			return errStopped
		}
	}
	l.objects = l.objects[:0]
	return nil
}

func (l *lister) add(k key, v value) {
	k.fam = l.fam
	l.objects = append(l.objects, object{Key: k, Value: v})
}

func (l *lister) list() error {
	name, stray, err := l.serving(l.ctx, l.fam)
	if err != nil || name == "" {
		return err
	}
	*l.places.name(l.fam) = name
	l.add(key{kind: kindTable}, 0)
	if stray != "" {
		l.add(key{kind: kindTable, name: l.book.names.of(l.fam).number(stray)}, 0)
	}
	if err := l.chains(); err != nil {
		return l.explain(err)
	}
	if err := l.flush(); err != nil {
		return err
	}
	var sets []nfnetlink.SetInfo
	if err := l.conn.Sets(l.ctx, l.table(l.fam), nfnetlink.Collect(&sets)); err != nil {
		return l.explain(err)
	}
	for i := range sets {
		if sets[i].Flags&unix.NFT_SET_ANONYMOUS != 0 {
			continue // it is part of a foreign rule, and goes with it
		}
		if err := l.set(&sets[i]); err != nil {
			return l.explain(err)
		}
		if err := l.flush(); err != nil {
			return err
		}
	}
	return nil
}

// chains lists chains with the hash that all their rules carry, and none where
// a rule is missing, foreign or out of place, or the chain is.
func (l *lister) chains() error {
	var chains []nfnetlink.ChainInfo
	var rules []nfnetlink.RuleInfo
	if err := l.conn.Chains(l.ctx, l.table(l.fam), nfnetlink.Collect(&chains)); err != nil {
		return err
	}
	if err := l.conn.Rules(l.ctx, l.table(l.fam), nfnetlink.Collect(&rules)); err != nil {
		return err
	}
	byChain := map[string][]string{}
	for i := range rules {
		byChain[rules[i].Chain] = append(byChain[rules[i].Chain], rules[i].Userdata)
	}
	for i := range chains {
		c := &chains[i]
		hash := hashOf(byChain[c.Name])
		if c.Base != l.book.options.baseChain(c.Name) {
			hash = 0
		}
		l.add(key{kind: kindChain, name: l.book.names.of(l.fam).number(c.Name), level: levelOf(c)}, hash)
	}
	return nil
}

func hashOf(tags []string) value {
	var first value
	for at, t := range tags {
		hash, i, n, ok := parseTag(t)
		if !ok || i != at || n != len(tags) || at > 0 && hash != first {
			return 0
		}
		first = hash
	}
	return first
}

// levelOf gives the level of a chain by its name, or one above all others for a
// chain that is none of ours, so that it goes first.
func levelOf(c *nfnetlink.ChainInfo) uint8 {
	switch c.Name {
	case rejectChain:
		return levelReject
	case chainServices, chainRemember:
		return levelDispatch
	case chainPrerouting, chainOutput, chainInput, chainPostrouting:
		return levelBase
	}
	for _, p := range [...]struct {
		prefix string
		level  uint8
	}{
		{"pick-", levelPick}, {"stick-", levelStick}, {"masquerade-nonpods-", levelSource}, {"masquerade-", levelMasquerade},
		{"inside-", levelSource}, {"pod-", levelSource}, {"restrict-", levelSource}, {"remember-affinity-", levelPick}, {"remember-", levelStick},
	} {
		if strings.HasPrefix(c.Name, p.prefix) {
			return p.level
		}
	}
	return levelBase + 1
}

// set lists a set and what is in it.
func (l *lister) set(s *nfnetlink.SetInfo) error {
	o := key{kind: kindSet, name: l.book.names.of(l.fam).number(s.Name)}
	hash := specHash(s.SetSpec)
	fixed := s.SetSpec
	fixed.Size = 0
	var err error
	switch {
	case slices.ContainsFunc(fixedSets(), func(f nfnetlink.Set) bool {
		return f.Spec(nfnetlink.Family(l.fam)) == fixed
	}):
		hash = specHash(fixed)
		before := len(l.objects)
		l.objects = slices.Grow(l.objects, max(s.Count, 0))
		err = l.fixedSet(s.Name)
		if f := l.fills.byName(l.fam, s.Name); f != nil {
			*f = fill{count: len(l.objects) - before, size: int(s.Size)}
		}
	case strings.HasPrefix(s.Name, sourcesSet("")):
		var name string
		if name, err = l.sources(s.Name); name != s.Name {
			hash = 0
		}
	case strings.HasPrefix(s.Name, affinityMap("", proxy.PoolCluster)) && !strings.HasSuffix(s.Name, affinityPortMap("")):
		err = l.clients(s.Name)
	}
	l.add(o, hash)
	return err
}

func (l *lister) fixedSet(name string) error {
	switch name {
	case setClusterIPs:
		return l.elements(name, func(e *nfnetlink.Element) { l.address(e, kindClusterIP) })
	case setHairpins:
		return l.elements(name, func(e *nfnetlink.Element) { l.address(e, kindHairpin) })
	case setRestrictions:
		return l.elements(name, func(e *nfnetlink.Element) { l.verdict(e, kindRestriction, false) })
	case setServices, setNodePorts:
		return l.elements(name, func(e *nfnetlink.Element) { l.verdict(e, kindFrontend, name == setNodePorts) })
	case setRecorders, setNodePortRecorders:
		return l.elements(name, func(e *nfnetlink.Element) { l.verdict(e, kindRecord, name == setNodePortRecorders) })
	}
	for _, pool := range []proxy.Pool{proxy.PoolCluster, proxy.PoolLocal} {
		for _, nodePort := range []bool{false, true} {
			if name == endpointsMap(pool, nodePort) {
				return l.endpoints(name, pool, nodePort)
			}
		}
	}
	return nil
}

func (l *lister) elements(set string, each func(*nfnetlink.Element)) error {
	before := len(l.objects)
	return l.conn.Elements(l.ctx, l.table(l.fam), set, nfnetlink.Visitor[nfnetlink.Element]{
		Begin: func() { l.objects = l.objects[:before] },
		Each: func(e *nfnetlink.Element) error {
			each(e)
			return nil
		},
	})
}

// address lists an element that is one address. A pair of two different ones is
// none of ours and stays: it matches no packet that comes from its own endpoint.
func (l *lister) address(e *nfnetlink.Element, kind kind) {
	k := key{kind: kind}
	n := l.fam.addrLen()
	if len(e.Key) < n {
		return
	}
	if kind == kindHairpin {
		copy(k.eaddr[:], e.Key[:n])
	} else {
		copy(k.addr[:], e.Key[:n])
	}
	l.add(k, 0)
}

// frontend reads a frontend from the start of a key.
func (l *lister) frontend(k *key, b []byte, nodePort bool) bool {
	if !nodePort {
		n := l.fam.addrLen()
		if len(b) < n {
			return false
		}
		copy(k.addr[:], b[:n])
		b = b[n:]
	}
	if len(b) < 8 {
		return false
	}
	k.proto, k.port = b[0], binary.BigEndian.Uint16(b[4:])
	return true
}

// verdict lists an element that leads to a chain, or drops.
func (l *lister) verdict(e *nfnetlink.Element, kind kind, nodePort bool) {
	k := key{kind: kind}
	if !l.frontend(&k, e.Key, nodePort) {
		return
	}
	v := to(l.book.names.of(l.fam).ofBytes(e.Chain))
	want := nfnetlink.VerdictGoto
	switch {
	case len(e.Chain) == 0:
		want = nfnetlink.VerdictDrop
	case kind == kindRestriction:
		want = nfnetlink.VerdictJump
	}
	if e.Verdict != want {
		v |= odd
	}
	l.add(k, v)
}

// endpoints lists the slots of a map, and takes note of them. Where slots are
// missing, what is there is not how this package leaves it: it is written anew.
func (l *lister) endpoints(set string, pool proxy.Pool, nodePort bool) error {
	first := len(l.objects)
	n := l.fam.addrLen()
	l.indexes = l.indexes[:0]
	err := l.elements(set, func(e *nfnetlink.Element) {
		if len(l.objects) == first {
			l.indexes = l.indexes[:0] // the listing began again
		}
		k := key{kind: kindEndpoint, pool: pool}
		if !l.frontend(&k, e.Key, nodePort) || len(e.Data) < n+2 || len(e.Key) < 12 {
			return
		}
		copy(k.eaddr[:], e.Data[:n])
		k.eport = binary.BigEndian.Uint16(e.Data[n:])
		l.add(k, 0)
		l.indexes = append(l.indexes, binary.NativeEndian.Uint32(e.Key[len(e.Key)-4:]))
	})
	if err != nil {
		return err
	}
	if !l.fillSlots(l.objects[first:], l.indexes) {
		l.rebuild = true
		return fmt.Errorf("nftables: %w: map %s has gaps", backends.ErrReplace, set)
	}
	return nil
}

// fillSlots puts endpoints in their slots, and reports whether all are filled,
// each with another endpoint.
func (l *lister) fillSlots(endpoints []object, indexes []uint32) bool {
	filled := map[slotPool]int{}
	for i := range endpoints {
		k := &endpoints[i].Key
		id, at := k.slotPool(), int(indexes[i])
		if at >= len(endpoints) {
			return false
		}
		slots := l.slots[id]
		if at >= len(slots) {
			slots = append(slots, make([]slot, at+1-len(slots))...)
			l.slots[id] = slots
		}
		if slots[at] != (slot{}) {
			return false // an element that was listed twice hides another one
		}
		slots[at] = k.slot()
		filled[id]++
	}
	var sorted []slot
	for id, n := range filled {
		if n != len(l.slots[id]) {
			return false
		}
		sorted = append(sorted[:0], l.slots[id]...)
		slices.SortFunc(sorted, slot.compare)
		if len(slices.Compact(sorted)) != n {
			return false
		}
	}
	return true
}

// clients lists the endpoints that clients stick to in an affinity map.
func (l *lister) clients(set string) error {
	seen := map[slot]bool{}
	err := l.eachClient(l.ctx, elementTarget{fam: l.fam, set: set}, func(_ string, to slot) { seen[to] = true })
	for to := range seen {
		l.add(stickyKey(l.fam, l.book.names.of(l.fam).number(set), to), 0)
	}
	return err
}

// sources gives the name that a set of sources with this content would have.
func (l *lister) sources(set string) (string, error) {
	var starts, ends [][16]byte
	n := l.fam.addrLen()
	err := l.conn.Elements(l.ctx, l.table(l.fam), set, nfnetlink.Visitor[nfnetlink.Element]{
		Begin: func() { starts, ends = nil, nil },
		Each: func(e *nfnetlink.Element) error {
			var a [16]byte
			copy(a[:n], e.Key)
			if e.IntervalEnd {
				ends = append(ends, a)
			} else {
				starts = append(starts, a)
			}
			return nil
		},
	})
	order := func(a, b [16]byte) int { return slices.Compare(a[:], b[:]) }
	slices.SortFunc(starts, order)
	slices.SortFunc(ends, order)
	// nft itself, and so the kernel, marks where the first range begins with an
	// end at the lowest address.
	if len(ends) > 0 && ends[0] == [16]byte{} {
		ends = ends[1:]
	}
	return sourcesName(starts, ends, n), err
}

// sourcesName names a set of sources by its content.
func sourcesName(starts, ends [][16]byte, n int) string {
	var content []byte
	for _, list := range [...][][16]byte{starts, ends} {
		content = binary.BigEndian.AppendUint32(content, uint32(len(list)))
		for i := range list {
			content = append(content, list[i][:n]...)
		}
	}
	return sourcesSet(digest(content))
}
