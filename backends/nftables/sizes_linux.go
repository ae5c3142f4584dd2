package nftables

import (
	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// Every fixed set is made with the size that it may grow to. The kernel then
// keeps it in a hash table of fixed size, which takes less than half the time to
// fill and is read back without faults right after it was filled; one that grows
// by itself is not. A set that is full is no error but a reason to write the
// tables anew, with room for twice as much.

// setID names a set of one of the tables.
type setID struct {
	fam  family
	name string
}

// fill is how full a set is.
type fill struct{ count, size int }

// leastSize is the size of a set of which little is known.
const leastSize = 1024

// sizeFor gives the size of a set that is to hold so many elements: as many
// again may come before it is full.
func sizeFor(count int) int {
	size := leastSize
	for size < 2*count {
		size *= 2
	}
	return size
}

// census counts what a snapshot needs, by set. Where an element may be shared,
// the count is an upper bound.
func census(s proxy.Snapshot) map[setID]int {
	out := map[setID]int{}
	for p := range s.All() {
		fam := familyOf(p.Name.Family)
		out[setID{fam, setHairpins}] += len(p.Cluster) + len(p.Local)
		for i := range p.Frontends {
			countFrontend(out, p, &p.Frontends[i])
		}
	}
	return out
}

func countFrontend(out map[setID]int, p *proxy.ServicePort, f *proxy.Frontend) {
	fam := familyOf(p.Name.Family)
	frontends, recorders := setServices, setRecorders
	if f.Kind == proxy.NodePort {
		frontends, recorders = setNodePorts, setNodePortRecorders
	}
	out[setID{fam, frontends}]++
	if f.Kind == proxy.ClusterIP {
		out[setID{fam, setClusterIPs}]++
	}
	if f.Restricted {
		out[setID{fam, setRestrictions}]++
	}
	if p.Affinity.Enabled() {
		out[setID{fam, recorders}]++
	}
	for _, pool := range poolsOf(f) {
		out[setID{fam, endpointsMap(pool, f.Kind == proxy.NodePort)}] += len(p.Pool(pool))
	}
}

// setOf gives the fixed set that an object is an element of.
func (k *key) setOf() setID {
	switch k.kind {
	case kindEndpoint:
		return setID{k.fam, endpointsMap(k.pool, k.addr == [16]byte{})}
	case kindHairpin, kindClusterIP, kindRestriction, kindRecord, kindFrontend:
		var buf [48]byte
		set, _ := elementOf(buf[:0], k)
		return setID{k.fam, set}
	case kindTable, kindSet, kindChain, kindSticky:
	}
	return setID{}
}

// grow works out how full the sets will be, and whether they have room. The
// kernel counts an element that is replaced twice until the transaction ends.
func (k *kernel) grow(ops []op) (counts map[setID]int, room bool) {
	counts = map[setID]int{}
	most := map[setID]int{}
	for i := range ops {
		id := ops[i].Key.setOf()
		if id == (setID{}) {
			continue
		}
		most[id]++
		switch ops[i].Kind {
		case backends.Add:
			counts[id]++
		case backends.Remove:
			counts[id]--
		case backends.Replace:
		}
	}
	for id, n := range most {
		if f, ok := k.fills[id]; ok && f.count+n > f.size {
			return nil, false
		}
	}
	return counts, true
}

func (k *kernel) settleFills(counts map[setID]int) {
	for id, n := range counts {
		f := k.fills[id]
		f.count += n
		k.fills[id] = f
	}
}
