package nftables

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"strings"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/proxy"
)

// The maps and sets that every table has. Most maps by address, protocol and port have a
// counterpart for node ports, by protocol and port.
const (
	setServices          = "services"                    // frontend : chain that serves it
	setNodePorts         = "nodeports"                   // node port : the same
	setRestrictions      = "restrictions"                // frontend : chain of its source ranges
	setClusterIPs        = "cluster-ips"                 // all ClusterIPs
	setHairpins          = "hairpins"                    // endpoint address . the same address
	setRecorders         = "affinity-services"           // frontend : chain that stores the endpoints of its clients
	setNodePortRecorders = "affinity-nodeports"          // node port : the same
	setNodePortClients   = "affinity-nodeport-endpoints" // node port . endpoint, of service ports with affinity
)

// endpointsMap names the map of the slots of a pool: frontend . slot : endpoint.
func endpointsMap(pool proxy.Pool, nodePort bool) string {
	if nodePort {
		return setName(endpointsAt(pool) + 1)
	}
	return setName(endpointsAt(pool))
}

// affinityMap names the map of the clients of a service port: client : endpoint.
func affinityMap(affinity string, pool proxy.Pool) string {
	if pool == proxy.PoolLocal {
		return "affinity-" + affinity + "-local"
	}
	return "affinity-" + affinity
}

// affinityPortMap names the second map of the clients of a service port in IPv6: client :
// port of its endpoint. nft cannot load its listing of a rule that stores more than 16
// bytes, so the addresses are in a map of their own.
func affinityPortMap(addresses string) string { return addresses + "-ports" }

// affinityClients is the maximum number of clients that have session affinity, for each service port (and so
// IP family) and pool. Further clients are served without affinity until others expire.
const affinityClients = 65_536

// affinitySets returns the maps of the clients of a service port.
func affinitySets(fam nfnetlink.Family, name string) []nfnetlink.Set {
	set := nfnetlink.Set{
		Name: name, Key: []nfnetlink.Selector{nfnetlink.SourceAddr}, Data: targetFields(),
		Flags: nfnetlink.SetDynamic | nfnetlink.SetTimeout, Size: affinityClients,
	}
	if fam != nfnetlink.IPv6 {
		return []nfnetlink.Set{set}
	}
	ports := set
	set.Data = targetFields()[:1]
	ports.Name, ports.Data = affinityPortMap(name), targetFields()[1:]
	return []nfnetlink.Set{set, ports}
}

// stickyKey returns the key of an endpoint for which clients may have affinity. Such an
// object has no counterpart in the kernel: when it is removed, so are its clients.
func stickyKey(fam nfnetlink.Family, set handle, s slot) key {
	return key{kind: kindSticky, fam: fam, name: set, eaddr: s.addr, eport: s.port}
}

func sourcesSet(ranges string) string { return "sources-" + ranges }

// setDefinition is a set, with its elements if these never change.
type setDefinition struct {
	set nfnetlink.Set
	// ranges are the elements of a set of intervals.
	ranges ranges
	// fixed is true if each table has the set. Its size is then chosen when it is
	// created.
	fixed bool
}

// ranges are ranges of addresses: the first address of each, and behind the address after the last one of each. If
// the last range includes the highest address, it has none behind.
type ranges struct{ first, behind [][16]byte }

// fixedSets returns the sets that every table has, by their numbers.
func fixedSets() [setCount]nfnetlink.Set {
	frontend, target := frontendFields(), targetFields()
	slots := append(frontendFields(), nfnetlink.RandomIndex)
	all := [setCount]nfnetlink.Set{
		atClusterIPs:             {Key: frontend[:1]},
		atHairpins:               {Key: []nfnetlink.Selector{nfnetlink.SourceAddr, nfnetlink.DestAddr}},
		atRestrictions:           {Key: frontend, Verdicts: true},
		atServices:               {Key: frontend, Verdicts: true},
		atNodePorts:              {Key: frontend[1:], Verdicts: true},
		atRecorders:              {Key: frontend, Verdicts: true},
		atNodePortRecorders:      {Key: frontend[1:], Verdicts: true},
		atNodePortClients:        {Key: append(frontendFields()[1:], target...)},
		atEndpoints:              {Key: slots, Data: target},
		atNodePortEndpoints:      {Key: slots[1:], Data: target},
		atLocalEndpoints:         {Key: slots, Data: target},
		atNodePortLocalEndpoints: {Key: slots[1:], Data: target},
	}
	for at := range all {
		all[at].Name = setName(at)
	}
	return all
}

func frontendFields() []nfnetlink.Selector {
	return []nfnetlink.Selector{nfnetlink.DestAddr, nfnetlink.L4Proto, nfnetlink.DestPort}
}

func targetFields() []nfnetlink.Selector {
	return []nfnetlink.Selector{nfnetlink.DestAddr, nfnetlink.DestPort}
}

// setObject returns the object of a set.
func setObject(fam nfnetlink.Family, d *setDefinition) object {
	return object{
		Key:     key{kind: kindSet, fam: fam, name: handleOf(d.set.Name)},
		Value:   value{hash: nft.SetHash(d.set.Spec(fam))},
		Payload: d,
	}
}

// sourceSet returns the set of the allowed sources of a restricted frontend. Frontends with
// the same sources share a set, whose name is derived from its content.
func sourceSet(fam nfnetlink.Family, sources []netip.Prefix) (object, string) {
	d := &setDefinition{
		set:    nfnetlink.Set{Key: []nfnetlink.Selector{nfnetlink.SourceAddr}, Flags: nfnetlink.SetInterval},
		ranges: rangesOf(fam, sources),
	}
	d.set.Name = sourcesName(d.ranges, fam.AddrLen())
	return setObject(fam, d), d.set.Name
}

// rangesOf returns the addresses of prefixes as sorted ranges with gaps between them, as
// the kernel requires.
func rangesOf(fam nfnetlink.Family, prefixes []netip.Prefix) (all ranges) {
	for _, r := range ipaddr.Ranges(prefixes) {
		all.first = append(all.first, bytesOf(fam, r.First))
		if behind := r.Last.Next(); behind.IsValid() {
			all.behind = append(all.behind, bytesOf(fam, behind))
		}
	}
	return all
}

// digest returns a hash of content that can be part of a name. Users choose the content, so
// the hash must resist collisions.
func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
}
