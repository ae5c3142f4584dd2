package backendtest

import (
	"net/netip"
	"slices"

	"github.com/vipkit/vipkit/internal/netns"
)

// World names a kind of node, with the network around it, that backends are tested
// on. See [Worlds].
type World string

// Worlds gives the worlds that [Run] knows beside the one that every run is in, where
// each pod has a link of its own to the node.
func Worlds() []World {
	var names []World
	for _, w := range worlds() {
		names = append(names, w.name)
	}
	return names
}

// world says how the testbed of a [World] differs from the one of the zero world.
type world struct {
	name World
	// what is the ability that it is about: a dataplane that lacks it is not tried there.
	what Capability
	// single says that there is IPv6 only.
	single bool
	// bridge has the pods of the node as its ports; nil: each has a link of its own.
	bridge *bridge
	// tunnelMTU is the MTU of a VXLAN to the pods of the other node; 0: they are routed.
	tunnelMTU int
	// addrs are further addresses of the node.
	addrs []nodeAddr
	// sysctls are set on the node, by their paths below /proc/sys.
	sysctls map[string]string
	// tables are those of other programs on the node, in the language of nft.
	tables string
	// rules are routing rules of other programs, and routes those of their tables.
	rules  []netns.Rule
	routes []netns.Route
	// forwards says what other programs let through the node, with the policy DROP of
	// the chain FORWARD; empty: all.
	forwards forwarding
}

// forwarding is what firewalls of a node let through.
type forwarding string

const (
	// forwardsPods: what comes from pods or goes to them.
	forwardsPods forwarding = "pods"
	// forwardsNothing: packets of connections that are there, of which there are none.
	forwardsNothing forwarding = "nothing"
)

// bridge says how the bridge of the node's pods is set up.
type bridge struct {
	// filtered: net.bridge.bridge-nf-call-iptables and -ip6tables are 1.
	filtered bool
	// hairpin is hairpin_mode of all ports.
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

// findWorld gives a world by name.
func findWorld(name World) (world, bool) {
	all := worlds()
	i := slices.IndexFunc(all, func(w world) bool { return w.name == name })
	if i < 0 {
		return world{}, false
	}
	return all[i], true
}

// needs gives the capability that a dataplane needs to carry a connection from a place
// to an endpoint, where a setting of this world stands against it.
func (w *world) needs(from, to place, masquerade bool) Capability {
	switch {
	case w.bridge == nil || !isPod(from) || !isPod(to):
	case w.bridge.filtered && !w.bridge.hairpin && from == to:
		return HairpinOff
	case !w.bridge.filtered && from != to && !masquerade:
		return UnfilteredBridges
	}
	return ""
}

// stand is an address that the node has towards others; if they are not valid, towards
// nobody.
type stand struct {
	addr    netip.Addr
	towards netip.Prefix
}

// stands are those that the node has beside its own addresses, which serve for all else.
func (w *world) stands() (all []stand) {
	for _, a := range w.addrs {
		all = append(all, a.stands()...)
	}
	if w.bridge != nil {
		for _, p := range bridgeAddrs() {
			all = append(all, stand{p.Addr(), p.Masked()})
		}
	}
	if w.tunnelMTU > 0 {
		v4, v6 := tunnelAddrs(atNode)[0], tunnelAddrs(atNode)[1]
		all = append(all,
			stand{v4, netip.MustParsePrefix("10.1.0.0/24")},
			// For interfaces without an address, IPv6 takes the one that is most
			// like the destination: routed pods see this one, too.
			stand{v6, netip.MustParsePrefix("fd00:10::/32")})
	}
	return all
}

// has reports whether there are addresses of a family in this world.
func (w *world) has(family netip.Addr) bool { return !w.single || family.Is6() }

// lets reports whether the node forwards what goes from one address to another.
func (w *world) lets(from, to netip.Addr) bool {
	isPods := func(p netip.Prefix) bool { return p.Contains(from) || p.Contains(to) }
	return w.forwards == "" || w.forwards == forwardsPods && slices.ContainsFunc(podRanges(), isPods)
}

// isPod reports whether a place is a pod of the node.
func isPod(at place) bool { return slices.Contains([]place{atClient, atLocal, atLocal2}, at) }
