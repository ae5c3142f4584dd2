package nftables

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/proxy"
)

// set lists a set and its elements.
func (l *lister) set(s *nfnetlink.SetInfo) error {
	o := key{kind: kindSet, name: handleOf(s.Name)}
	hash := nft.SetHash(s.SetSpec)
	at, sets, fixed := fixedSetAt(s.Name), fixedSets(), s.SetSpec
	fixed.Size = 0
	var err error
	switch {
	case at < setCount && sets[at].Spec(l.fam) == fixed:
		hash = nft.SetHash(fixed)
		before := len(l.objects)
		l.objects = slices.Grow(l.objects, max(s.Count, 0))
		err = l.fixedSet(at)
		l.tables.fills.of(l.fam)[at] = fill{count: len(l.objects) - before, size: int(s.Size)}
		if at == atRecorders || at == atNodePortRecorders {
			l.recorders = append(l.recorders, l.objects[before:]...)
		}
	case strings.HasPrefix(s.Name, sourcesSet("")):
		var name string
		if name, err = l.sources(s.Name); name != s.Name {
			hash = 0
		}
	case strings.HasPrefix(s.Name, affinityMap("", proxy.PoolCluster)):
		if !strings.HasSuffix(s.Name, affinityPortMap("")) {
			err = l.clients(s.Name)
		}
	case at == setCount:
		err = nft.MustReplace("set " + s.Name + ", which this backend did not make,")
	}
	l.add(o, value{hash: hash})
	return err
}

func (l *lister) fixedSet(at int) error {
	switch name := setName(at); at {
	case atClusterIPs:
		return l.elements(name, func(e *nfnetlink.Element) bool { return l.address(e, kindClusterIP) })
	case atHairpins:
		return l.elements(name, func(e *nfnetlink.Element) bool { return l.address(e, kindHairpin) })
	case atNodePortClients:
		return l.elements(name, l.nodePortClient)
	case atRestrictions:
		return l.elements(name, func(e *nfnetlink.Element) bool { return l.verdict(e, kindRestriction, false) })
	case atServices, atNodePorts:
		return l.elements(name, func(e *nfnetlink.Element) bool { return l.verdict(e, kindFrontend, at == atNodePorts) })
	case atRecorders, atNodePortRecorders:
		return l.elements(name, func(e *nfnetlink.Element) bool { return l.verdict(e, kindRecord, at == atNodePortRecorders) })
	case atEndpoints, atNodePortEndpoints:
		return l.endpoints(name, proxy.PoolCluster, at == atNodePortEndpoints)
	default:
		return l.endpoints(name, proxy.PoolLocal, at == atNodePortLocalEndpoints)
	}
}

// elements lists the elements of a set. Each reports whether an element has a form that this
// package writes. If one has not, such as a catch-all element, the tables are replaced,
// because it cannot be removed by its key.
func (l *lister) elements(set string, each func(*nfnetlink.Element) (own bool)) error {
	before, own := len(l.objects), true
	err := l.Elements(l.ctx, l.tables.table(l.fam), set, func() { l.objects, own = l.objects[:before], true }, func(e *nfnetlink.Element) error {
		own = each(e) && own
		return nil
	})
	if err == nil && !own {
		err = nft.MustReplace("set " + set + ", which has an element that this backend did not write,")
	}
	return err
}

// element adds the object of an element. It returns false if this package would write
// another key for that object. The key of an endpoint is without its slot.
func (l *lister) element(k key, v value, key []byte) (own bool) {
	var buf [48]byte
	k.fam = l.fam
	if _, own := elementOf(buf[:0], &k); !bytes.Equal(own, key) {
		return false
	}
	l.add(k, v)
	return true
}

// address lists an element whose key is one address, or an address twice.
func (l *lister) address(e *nfnetlink.Element, kind kind) (own bool) {
	k := key{kind: kind}
	n := l.fam.AddrLen()
	if len(e.Key) < n {
		return false
	}
	if kind == kindHairpin {
		copy(k.eaddr[:], e.Key[:n])
	} else {
		copy(k.addr[:], e.Key[:n])
	}
	return l.element(k, value{}, e.Key)
}

// frontend reads a frontend from the start of a key.
func (l *lister) frontend(k *key, b []byte, nodePort bool) bool {
	if !nodePort {
		n := l.fam.AddrLen()
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

// verdict lists an element with a jump or goto to a chain, or a drop.
func (l *lister) verdict(e *nfnetlink.Element, kind kind, nodePort bool) (own bool) {
	k := key{kind: kind}
	if !l.frontend(&k, e.Key, nodePort) {
		return false
	}
	v := to(handleOf(string(e.Chain)))
	want := nfnetlink.VerdictGoto
	switch {
	case len(e.Chain) == 0:
		want = nfnetlink.VerdictDrop
	case kind == kindRestriction:
		want = nfnetlink.VerdictJump
	}
	if e.Verdict != want {
		v.hash = foreignVerdict
	}
	return l.element(k, v, e.Key)
}

// nodePortClient lists an endpoint that clients of a node port may stick to.
func (l *lister) nodePortClient(e *nfnetlink.Element) (own bool) {
	k := key{kind: kindNodePortClient}
	n := l.fam.AddrLen()
	if !l.frontend(&k, e.Key, true) || len(e.Key) < 8+n+2 {
		return false
	}
	copy(k.eaddr[:], e.Key[8:8+n])
	k.eport = binary.BigEndian.Uint16(e.Key[8+n:])
	return l.element(k, value{}, e.Key)
}

// endpoints lists the endpoints of a map, and stores their slots. If slots are missing,
// another program has changed the map, and the tables are replaced.
func (l *lister) endpoints(set string, pool proxy.Pool, nodePort bool) error {
	first := len(l.objects)
	n := l.fam.AddrLen()
	l.indexes = l.indexes[:0]
	err := l.elements(set, func(e *nfnetlink.Element) (own bool) {
		if len(l.objects) == first {
			l.indexes = l.indexes[:0] // the listing was started again
		}
		k := key{kind: kindEndpoint, pool: pool}
		if !l.frontend(&k, e.Key, nodePort) || len(e.Data) < n+2 || len(e.Key) < 12 {
			return false
		}
		copy(k.eaddr[:], e.Data[:n])
		k.eport = binary.BigEndian.Uint16(e.Data[n:])
		l.indexes = append(l.indexes, binary.NativeEndian.Uint32(e.Key[len(e.Key)-4:]))
		return l.element(k, value{}, e.Key[:len(e.Key)-4])
	})
	if err != nil {
		return err
	}
	if !l.fillSlots(l.objects[first:], l.indexes) {
		return nft.MustReplace("map " + set + ", in which slots of endpoints are empty or have the same endpoint,")
	}
	return nil
}

// fillSlots stores the endpoints of slots, and reports whether all slots are filled, each
// with a different endpoint.
func (l *lister) fillSlots(endpoints []object, indexes []uint32) bool {
	filled := map[slotPool]int{}
	for i := range endpoints {
		k := &endpoints[i].Key
		id, at := k.slotPool(), int(indexes[i])
		if at >= len(endpoints) {
			return false
		}
		slots := l.tables.slots[id]
		if at >= len(slots) {
			slots = append(slots, make([]slot, at+1-len(slots))...)
			l.tables.slots[id] = slots
		}
		if slots[at] != (slot{}) {
			return false // an element was listed twice, so another one is missing
		}
		slots[at] = k.slot()
		filled[id]++
	}
	var sorted []slot
	for id, n := range filled {
		if n != len(l.tables.slots[id]) {
			return false
		}
		sorted = append(sorted[:0], l.tables.slots[id]...)
		slices.SortFunc(sorted, slot.compare)
		if len(slices.Compact(sorted)) != n {
			return false
		}
	}
	return true
}

// clients lists the endpoints that clients stick to in an affinity map.
func (l *lister) clients(set string) error {
	name := handleOf(set)
	err := l.eachClient(l.ctx, elementTarget{table: l.tables.table(l.fam), set: set}, func(_ string, to slot) {
		l.sticky[stickyKey(l.fam, name, to)] = struct{}{}
	})
	return nft.Explain(err)
}

// choices lists the endpoints that frontends with affinity choose from, too: between this
// listing and the next commit, a client may get affinity to any of them.
func (l *lister) choices(sets []nfnetlink.SetInfo) {
	maps := map[string]bool{}
	for i := range sets {
		maps[sets[i].Name] = true
	}
	for i := range l.recorders {
		id := l.recorders[i].Key.slotPool()
		for _, id.pool = range []proxy.Pool{proxy.PoolCluster, proxy.PoolLocal} {
			set := affinityMap(recordedAffinity(text(l.recorders[i].Value.chain)), id.pool)
			if !maps[set] {
				continue
			}
			for _, to := range l.tables.slots[id] {
				l.sticky[stickyKey(l.fam, handleOf(set), to)] = struct{}{}
			}
		}
	}
}

// recordedAffinity returns the part of the names of affinity maps to which a chain adds clients.
func recordedAffinity(recorder string) string {
	name := strings.TrimPrefix(strings.TrimPrefix(recorder, "remember-"), affinityMap("", proxy.PoolCluster))
	affinity, _, _ := strings.Cut(name, "-")
	return affinity
}

// sources returns the name that a set of sources with this content would have.
func (l *lister) sources(set string) (string, error) {
	var found ranges
	n := l.fam.AddrLen()
	err := l.Elements(l.ctx, l.tables.table(l.fam), set, func() { found = ranges{} }, func(e *nfnetlink.Element) error {
		var a [16]byte
		copy(a[:n], e.Key)
		if e.IntervalEnd {
			found.behind = append(found.behind, a)
		} else {
			found.first = append(found.first, a)
		}
		return nil
	})
	order := func(a, b [16]byte) int { return slices.Compare(a[:], b[:]) }
	slices.SortFunc(found.first, order)
	slices.SortFunc(found.behind, order)
	// If nft wrote the set, an end at the lowest address precedes the first range.
	if len(found.behind) > 0 && found.behind[0] == [16]byte{} {
		found.behind = found.behind[1:]
	}
	return sourcesName(found, n), err
}

// sourcesName names a set of sources by its content.
func sourcesName(all ranges, n int) string {
	var content []byte
	for _, list := range [...][][16]byte{all.first, all.behind} {
		content = binary.BigEndian.AppendUint32(content, uint32(len(list)))
		for i := range list {
			content = append(content, list[i][:n]...)
		}
	}
	return sourcesSet(digest(content))
}
