package backendtest

import (
	"net/netip"
	"slices"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
)

// World is the name of a kind of node, with the network around it, that backends are
// tested on. See [Worlds].
type World string

// Worlds returns the worlds of [Run], without the one that every run tests, where each pod
// has a link of its own to the node.
func Worlds() []World {
	var names []World
	for _, w := range worlds() {
		names = append(names, w.name)
	}
	return names
}

// world has the differences of the testbed of a [World] to that of the zero world.
type world struct {
	name World
	// what is the capability that it tests: a dataplane that lacks it is not tested there.
	what Capability
	// single says that there is only IPv6.
	single bool
	// bridge is the bridge of the node's pods; nil: each pod has a link of its own.
	bridge *bridge
	// tunnelMTU is the MTU of a VXLAN to the pods of the other node; 0: they are routed.
	tunnelMTU int
	// addrs are further addresses of the node.
	addrs []nodeAddr
	// sysctls are set on the node, by their paths below /proc/sys.
	sysctls map[string]string
	// tables are foreign tables on the node, in the language of nft.
	tables string
	// rules are foreign routing rules, and routes the routes of their tables.
	rules  []netns.Rule
	routes []netns.Route
	// forwards is the traffic that other programs accept, with the policy DROP of the
	// chain FORWARD; empty: all.
	forwards forwarding
}

// forwarding is the forwarded traffic that firewalls of a node accept.
type forwarding string

const (
	// forwardsPods: packets from and to pods.
	forwardsPods forwarding = "pods"
	// forwardsNothing: packets of established connections, of which there are none.
	forwardsNothing forwarding = "nothing"
)

// bridgeName has the prefix of the interfaces of routed pods, so that scenarios that
// recognize pods by this prefix work here, too.
const bridgeName = "cali-bridge"

// bridgeAddrs are the addresses of the node on the bridge, with the ranges of the pods. The bridge is
// younger than the links to other hosts, as on most nodes: the kernel walks over interfaces in the order
// of their age when it selects a source address.
func bridgeAddrs() []netip.Prefix { return snapshots.Prefixes("10.0.0.1/24", "fd00:10::1/64") }

// bridge has the settings of the bridge of the node's pods.
type bridge struct {
	// filtered: net.bridge.bridge-nf-call-iptables and -ip6tables are 1.
	filtered bool
	// hairpin is the hairpin_mode of all ports.
	hairpin bool
}

func worlds() []world {
	return []world{
		{name: "bridge-nf-1", what: Bridges, bridge: &bridge{filtered: true, hairpin: true}},
		{name: "bridge-nf-1-hairpin-off", what: Bridges, bridge: &bridge{filtered: true}},
		{name: "bridge-nf-0", what: Bridges, bridge: &bridge{}},
		{name: "bridge-nf-0-hairpin-on", what: Bridges, bridge: &bridge{hairpin: true}},
		{name: "vxlan", what: Tunnels, tunnelMTU: 1450},
		{name: "vxlan-bridge", what: Tunnels, bridge: &bridge{filtered: true, hairpin: true}, tunnelMTU: 1450},
		{name: "addresses", what: Addresses, addrs: severalAddrs()},
		{name: "ipv6", what: SingleStack, single: true},
		{name: "rp-filter", what: ReversePathFilter, sysctls: map[string]string{"net/ipv4/conf/all/rp_filter": "1"}},
		{name: "rp-filter-ipv6", what: ReversePathFilter6, tables: reversePathTable},
		{name: "forward-drop", what: Firewalls, forwards: forwardsPods},
		{name: "marks", what: Marks, tables: policyMarks},
		{name: "marks-restored", what: RestoredMarks, tables: restoredMarks},
		{name: "policy-routing", what: PolicyRouting, tables: connectionMarks, rules: podRules(), routes: podRoutes()},
		{name: "forward-drop-pods", what: ClosedFirewalls, forwards: forwardsNothing},
	}
}

// findWorld returns a world by name.
func findWorld(name World) (world, bool) {
	all := worlds()
	i := slices.IndexFunc(all, func(w world) bool { return w.name == name })
	if i < 0 {
		return world{}, false
	}
	return all[i], true
}

// needs returns the capability that a dataplane needs to forward a connection from one host
// to an endpoint at another one, because of a setting of this world; empty for none.
func (w *world) needs(from, to cluster.Name, masquerade bool) Capability {
	switch {
	case w.bridge == nil || !cluster.IsPod(from) || !cluster.IsPod(to):
	case w.bridge.filtered && !w.bridge.hairpin && from == to:
		return HairpinOff
	case !w.bridge.filtered && from != to && !masquerade:
		return UnfilteredBridges
	}
	return ""
}

// sourceAddr is an address that the node selects as source for destinations in towards; for
// none if that is not valid.
type sourceAddr struct {
	addr    netip.Addr
	towards netip.Prefix
}

// sourceAddrs returns the node's source addresses in addition to its own ones, which it uses
// for all other destinations.
func (w *world) sourceAddrs() (all []sourceAddr) {
	for _, a := range w.addrs {
		all = append(all, a.sourceAddrs()...)
	}
	if w.bridge != nil {
		for _, p := range bridgeAddrs() {
			all = append(all, sourceAddr{p.Addr(), p.Masked()})
		}
	}
	if w.tunnelMTU > 0 {
		v4, v6 := tunnelAddrs(cluster.Node)[0], tunnelAddrs(cluster.Node)[1]
		all = append(all,
			sourceAddr{v4, netip.MustParsePrefix("10.1.0.0/24")},
			// For interfaces without an address, IPv6 selects the one with the longest
			// common prefix with the destination: routed pods see this one, too.
			sourceAddr{v6, netip.MustParsePrefix("fd00:10::/32")})
	}
	return all
}

// has reports whether this world has the family of an address.
func (w *world) has(family netip.Addr) bool { return !w.single || family.Is6() }

// allows reports whether firewalls accept packets from one address to another.
func (w *world) allows(from, to netip.Addr) bool {
	isPods := func(p netip.Prefix) bool { return p.Contains(from) || p.Contains(to) }
	return w.forwards == "" || w.forwards == forwardsPods && slices.ContainsFunc(cluster.PodRanges(), isPods)
}
