package nftables

import (
	"slices"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// Every fixed set is made with the size that it may grow to. The kernel then
// keeps it in a hash table of fixed size, which takes less than half the time to
// fill and is read back without faults right after it was filled; one that grows
// by itself is not. A set that is full is no error but a reason to write the
// tables anew, with room for twice as much.

// setCount is the number of fixed sets of one table.
const setCount = 12

// fixedNames gives the names of the fixed sets in the order of their numbers.
func fixedNames() [setCount]string {
	return [setCount]string{
		setClusterIPs, setHairpins, setRestrictions, setServices, setNodePorts, setRecorders, setNodePortRecorders,
		setNodePortClients,
		endpointsMap(proxy.PoolCluster, false), endpointsMap(proxy.PoolCluster, true),
		endpointsMap(proxy.PoolLocal, false), endpointsMap(proxy.PoolLocal, true),
	}
}

func isFixedName(name string) bool {
	names := fixedNames()
	return slices.Contains(names[:], name)
}

// The numbers of the fixed sets. What has a twin for node ports comes right
// before it.
const (
	atClusterIPs = iota
	atHairpins
	atRestrictions
	atServices
	atNodePorts
	atRecorders
	atNodePortRecorders
	atNodePortClients
	atEndpoints
	atNodePortEndpoints
	atLocalEndpoints
	atNodePortLocalEndpoints
	atNone
)

// perSet holds something for each of the fixed sets of both tables.
type perSet[T any] [2][setCount]T

func (p *perSet[T]) of(fam family) *[setCount]T {
	if fam == ipv6 {
		return &p[1]
	}
	return &p[0]
}

// byName finds what there is for a set, by its name; nil for a set that is none
// of the fixed ones.
func (p *perSet[T]) byName(fam family, name string) *T {
	names := fixedNames()
	if i := slices.Index(names[:], name); i >= 0 {
		return &p.of(fam)[i]
	}
	return nil
}

// fill is how full a set is.
type fill struct{ count, size int }

// leastSize is the size of a set of which little is known.
const leastSize = 1024

// sizeFor gives the size of a set that is to hold so many elements: as many
// again may come before it is full.
func (l limits) sizeFor(count int) int {
	size := l.set
	for size < 2*count {
		size *= 2
	}
	return size
}

// census counts what a snapshot needs, by set. Where an element may be shared,
// the count is an upper bound.
func census(s proxy.Snapshot) perSet[int] {
	var out perSet[int]
	for p := range s.All() {
		counts := out.of(familyOf(p.Name.Family))
		counts[atHairpins] += len(p.Cluster) + len(p.Local)
		for i := range p.Frontends {
			countFrontend(counts, p, &p.Frontends[i])
		}
	}
	return out
}

func countFrontend(counts *[setCount]int, p *proxy.ServicePort, f *proxy.Frontend) {
	twin := 0
	if f.Kind == proxy.NodePort {
		twin = 1
	}
	counts[atServices+twin]++
	if f.Kind == proxy.ClusterIP {
		counts[atClusterIPs]++
	}
	if f.Restricted {
		counts[atRestrictions]++
	}
	if p.Affinity.Enabled() {
		counts[atRecorders+twin]++
	}
	for _, pool := range poolsOf(f) {
		counts[endpointsAt(pool)+twin] += len(p.Pool(pool))
		if twin == 1 && p.Affinity.Enabled() {
			counts[atNodePortClients] += len(p.Pool(pool))
		}
	}
}

func endpointsAt(pool proxy.Pool) int {
	if pool == proxy.PoolLocal {
		return atLocalEndpoints
	}
	return atEndpoints
}

// setOf gives the number of the fixed set that an object is an element of, and
// atNone for what is no such element.
func (k *key) setOf() int {
	twin := 0
	if k.addr == [16]byte{} {
		twin = 1
	}
	switch k.kind {
	case kindEndpoint:
		return endpointsAt(k.pool) + twin
	case kindFrontend:
		return atServices + twin
	case kindRecord:
		return atRecorders + twin
	case kindNodePortClient:
		return atNodePortClients
	case kindHairpin:
		return atHairpins
	case kindClusterIP:
		return atClusterIPs
	case kindRestriction:
		return atRestrictions
	case kindTable, kindSet, kindChain, kindSticky:
	}
	return atNone
}

// grow works out how much fuller the sets will be, and whether they have room.
// What is removed in a transaction makes no room for what it adds before its end.
func (k *kernel) grow(ops []op) (counts perSet[int], room bool) {
	var most perSet[int]
	for i := range ops {
		at, fam := ops[i].Key.setOf(), ops[i].Key.fam
		if at == atNone {
			continue
		}
		switch ops[i].Kind {
		case backends.Add:
			most.of(fam)[at]++
			counts.of(fam)[at]++
		case backends.Remove:
			counts.of(fam)[at]--
		case backends.Replace:
			most.of(fam)[at]++
		}
	}
	for t := range most {
		for at, n := range most[t] {
			if f := k.fills[t][at]; n > 0 && f.size > 0 && f.count+n > f.size {
				return counts, false
			}
		}
	}
	return counts, true
}

func (k *kernel) settleFills(counts *perSet[int]) {
	for t := range counts {
		for at, n := range counts[t] {
			k.fills[t][at].count += n
		}
	}
}
