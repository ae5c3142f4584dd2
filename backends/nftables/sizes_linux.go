package nftables

import (
	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/proxy"
)

// Every fixed set is created with a size. The kernel then uses a hash table of fixed size:
// filling it takes less than half the time that a growing table needs, and a listing is correct
// right afterwards, unlike the listing of a growing table. A full set is not an error: the backend
// replaces the tables, with sets of twice the size that is needed.

// The numbers of the fixed sets. If a set has a counterpart for node ports, the counterpart has the next number.
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
	setCount
)

// setName returns the name of a fixed set.
func setName(at int) string {
	return [setCount]string{
		setClusterIPs, setHairpins, setRestrictions, setServices, setNodePorts, setRecorders, setNodePortRecorders, setNodePortClients,
		"endpoints", "nodeport-endpoints", "local-endpoints", "nodeport-local-endpoints",
	}[at]
}

// fixedSetAt returns the number of a fixed set; setCount for other sets.
func fixedSetAt(name string) int {
	at := 0
	for at < setCount && setName(at) != name {
		at++
	}
	return at
}

// perSet has a value for each of the fixed sets of both tables.
type perSet[T any] [2][setCount]T

// familyAt returns the index of a family in arrays of both.
func familyAt(fam nfnetlink.Family) int {
	if fam == nfnetlink.IPv6 {
		return 1
	}
	return 0
}

func (p *perSet[T]) of(fam nfnetlink.Family) *[setCount]T { return &p[familyAt(fam)] }

// byName returns the value for a set; nil if the set is not a fixed one.
func (p *perSet[T]) byName(fam nfnetlink.Family, name string) *T {
	if at := fixedSetAt(name); at < setCount {
		return &p.of(fam)[at]
	}
	return nil
}

// fill is the number of elements of a set, and its size.
type fill struct{ count, size int }

// leastSize is the least size of a set.
const leastSize = 1024

// sizeFor returns the size of a set that gets count elements: at least twice as many.
func (l limits) sizeFor(count int) int {
	size := l.set
	for size < 2*count {
		size *= 2
	}
	return size
}

// countElements counts the elements that a snapshot needs, by set. Where service ports may
// share an element, the count is an upper bound.
func countElements(s proxy.Snapshot) perSet[int] {
	var out perSet[int]
	for p := range s.All() {
		counts := out.of(nft.FamilyOf(p.Name.Family))
		counts[atHairpins] += len(p.Cluster) + len(p.Local)
		for i := range p.Frontends {
			countFrontend(counts, p, &p.Frontends[i])
		}
	}
	return out
}

// total returns the sum of counts.
func total(counts *perSet[int]) (sum int) {
	for _, table := range counts {
		for _, n := range table {
			sum += n
		}
	}
	return sum
}

func countFrontend(counts *[setCount]int, p *proxy.ServicePort, f *proxy.Frontend) {
	nodePort := 0
	if f.Kind == proxy.NodePort {
		nodePort = 1
	}
	counts[atServices+nodePort]++
	if f.Kind == proxy.ClusterIP {
		counts[atClusterIPs]++
	}
	if f.Restricted {
		counts[atRestrictions]++
	}
	if p.Affinity.Enabled() {
		counts[atRecorders+nodePort]++
	}
	for _, pool := range poolsOf(f) {
		counts[endpointsAt(pool)+nodePort] += len(p.Pool(pool))
		if nodePort == 1 && p.Affinity.Enabled() {
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

// setAt returns the number of the fixed set that an object is an element of; setCount for
// other objects.
func (k *key) setAt() int {
	nodePort := 0
	if k.addr == [16]byte{} {
		nodePort = 1
	}
	switch k.kind {
	case kindEndpoint:
		return endpointsAt(k.pool) + nodePort
	case kindFrontend:
		return atServices + nodePort
	case kindRecord:
		return atRecorders + nodePort
	case kindNodePortClient:
		return atNodePortClients
	case kindHairpin:
		return atHairpins
	case kindClusterIP:
		return atClusterIPs
	case kindRestriction:
		return atRestrictions
	default:
		return setCount
	}
}

// grow returns how many elements operations add to each set, and whether the sets have room
// for them. An element that a transaction removes needs its space until the end of the
// transaction.
func (t *tables) grow(ops []op) (counts perSet[int], room bool) {
	var most perSet[int]
	for i := range ops {
		at, fam := ops[i].Key.setAt(), ops[i].Key.fam
		if at == setCount {
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
	for fam := range most {
		for at, n := range most[fam] {
			if f := t.fills[fam][at]; n > 0 && f.size > 0 && f.count+n > f.size {
				return counts, false
			}
		}
	}
	return counts, true
}

// recordFills adds the elements of a commit to the counts of the sets.
func (t *tables) recordFills(counts *perSet[int]) {
	for fam := range counts {
		for at, n := range counts[fam] {
			t.fills[fam][at].count += n
		}
	}
}
