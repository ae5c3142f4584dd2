package nftables

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// The maps and sets that every table has. What is found by address, protocol
// and port has a twin, found by protocol and port, for node ports.
const (
	setServices          = "services"                    // frontend : where it leads
	setNodePorts         = "nodeports"                   // node port : where it leads
	setRestrictions      = "restrictions"                // frontend : chain of its source ranges
	setClusterIPs        = "cluster-ips"                 // all ClusterIPs
	setHairpins          = "hairpins"                    // endpoint address . the same
	setRecorders         = "affinity-services"           // frontend : chain that remembers its clients
	setNodePortRecorders = "affinity-nodeports"          // node port : the same
	setNodePortClients   = "affinity-nodeport-endpoints" // node port . endpoint, where clients are remembered
)

// endpointsMap names the map of the slots of a pool: frontend . slot : endpoint.
func endpointsMap(pool proxy.Pool, nodePort bool) string {
	name := "endpoints"
	if pool == proxy.PoolLocal {
		name = "local-" + name
	}
	if nodePort {
		name = "nodeport-" + name
	}
	return name
}

// affinityMap names the map of the clients of a service port: client : endpoint.
func affinityMap(affinity string, pool proxy.Pool) string {
	if pool == proxy.PoolLocal {
		return "affinity-" + affinity + "-local"
	}
	return "affinity-" + affinity
}

// affinityPortMap names the map of the clients of a service port in IPv6: client
// : port of its endpoint. The program nft cannot read back a rule that notes
// more than 16 bytes, so the address stands in a map of its own.
func affinityPortMap(addresses string) string { return addresses + "-ports" }

// affinitySets gives the maps that remember the clients of a service port.
func affinitySets(fam family, name string, clients uint32) []nfnetlink.Set {
	set := nfnetlink.Set{
		Name: name, Key: []nfnetlink.Selector{nfnetlink.SourceAddr}, Data: targetFields(),
		Flags: nfnetlink.SetDynamic | nfnetlink.SetTimeout, Size: clients,
	}
	if fam != ipv6 {
		return []nfnetlink.Set{set}
	}
	ports := set
	set.Data = targetFields()[:1]
	ports.Name, ports.Data = affinityPortMap(name), targetFields()[1:]
	return []nfnetlink.Set{set, ports}
}

// stickyKey is the object that stands for an endpoint that clients may stick to.
func stickyKey(fam family, set name, s slot) key {
	return key{kind: kindSticky, fam: fam, name: set, eaddr: s.addr, eport: s.port}
}

func sourcesSet(ranges string) string { return "sources-" + ranges }

// setDefinition is a set with, for one that never changes, its elements.
type setDefinition struct {
	set nfnetlink.Set
	// ranges are keys of intervals: first address, and the one behind the last.
	ranges  []addrRange
	lasting bool
}

type addrRange struct {
	first, behind [16]byte
	// open says that the range reaches to the last address there is.
	open bool
}

// fixedSets gives the sets that every table has.
func fixedSets() []nfnetlink.Set {
	frontend, target := frontendFields(), targetFields()
	nodePort := frontend[1:]
	sets := []nfnetlink.Set{
		{Name: setClusterIPs, Key: frontend[:1]},
		{Name: setHairpins, Key: []nfnetlink.Selector{nfnetlink.SourceAddr, nfnetlink.DestAddr}},
		{Name: setRestrictions, Key: frontend, Verdicts: true},
		{Name: setServices, Key: frontend, Verdicts: true},
		{Name: setNodePorts, Key: nodePort, Verdicts: true},
		{Name: setRecorders, Key: frontend, Verdicts: true},
		{Name: setNodePortRecorders, Key: nodePort, Verdicts: true},
		{Name: setNodePortClients, Key: append(slices.Clone(nodePort), target...)},
	}
	for _, pool := range []proxy.Pool{proxy.PoolCluster, proxy.PoolLocal} {
		sets = append(sets,
			nfnetlink.Set{Name: endpointsMap(pool, false), Key: append(frontendFields(), nfnetlink.RandomIndex), Data: target},
			nfnetlink.Set{Name: endpointsMap(pool, true), Key: append(frontendFields()[1:], nfnetlink.RandomIndex), Data: target})
	}
	return sets
}

func frontendFields() []nfnetlink.Selector {
	return []nfnetlink.Selector{nfnetlink.DestAddr, nfnetlink.L4Proto, nfnetlink.DestPort}
}

func targetFields() []nfnetlink.Selector {
	return []nfnetlink.Selector{nfnetlink.DestAddr, nfnetlink.DestPort}
}

// setObject gives the object of a set, and enters its definition unless it
// stands there already.
func (p *page) setObject(fam family, d setDefinition) object {
	v := specHash(d.set.Spec(nfnetlink.Family(fam)))
	id := definitionID{fam, d.set.Name, v}
	if _, ok := p.sets[id]; !ok {
		p.sets[id] = d
	}
	return object{Key: key{kind: kindSet, fam: fam, name: p.names.of(fam).number(d.set.Name)}, Value: v}
}

// specHash stands for all that is chosen when a set is created.
func specHash(s nfnetlink.SetSpec) value {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%+v", s) // a hash does not fail
	return value(h.Sum64())
}

// sourceSet is the set of the allowed sources of a restricted frontend. Sets of
// equal content are one: the name is that of the content.
func (p *page) sourceSet(fam family, sources []netip.Prefix) (object, string) {
	d := setDefinition{
		set:    nfnetlink.Set{Key: []nfnetlink.Selector{nfnetlink.SourceAddr}, Flags: nfnetlink.SetInterval},
		ranges: rangesOf(fam, sources),
	}
	var starts, ends [][16]byte
	for _, r := range d.ranges {
		starts = append(starts, r.first)
		if !r.open {
			ends = append(ends, r.behind)
		}
	}
	d.set.Name = sourcesName(starts, ends, fam.addrLen())
	return p.setObject(fam, d), d.set.Name
}

// rangesOf gives the addresses of prefixes as ranges in order, with gaps between
// them: the kernel takes no others.
func rangesOf(fam family, prefixes []netip.Prefix) []addrRange {
	var all []addrRange
	for _, r := range ipaddr.Ranges(prefixes) {
		behind := r.Last.Next()
		out := addrRange{first: fam.bytes(r.First), open: !behind.IsValid()}
		if !out.open {
			out.behind = fam.bytes(behind)
		}
		all = append(all, out)
	}
	return all
}

// digest names something by its content, in a form that can be part of a name.
// Users choose the content, so two contents must not have one digest.
func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
}
