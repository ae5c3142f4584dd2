package backendtest

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/vipkit/vipkit/internal/netns"
)

// bridgeName has the prefix of the interfaces of routed pods, so that scenarios that
// recognize pods by this prefix work here, too.
const bridgeName = "cali-bridge"

// bridgeAddrs are the addresses of the node on the bridge, with the ranges of the pods.
func bridgeAddrs() []netip.Prefix { return prefixes("10.0.0.1/24", "fd00:10::1/64") }

// addToBridge makes a pod a port of the node's bridge, and makes the bridge with the first
// pod: on most nodes it is younger than the links to other hosts, and the kernel walks over
// interfaces in the order of their age when it selects a source address.
func (b *testbed) addToBridge(h *host) error {
	node := b.node()
	if slices.IndexFunc(b.hosts, func(o *host) bool { return isPod(o.name) }) == len(b.hosts)-1 {
		if err := b.makeBridge(); err != nil {
			return err
		}
	}
	if err := netns.Link(netns.End{NS: node, Name: h.attachment}, netns.End{NS: h.ns, Name: uplinkName}); err != nil {
		return err
	}
	if err := node.AddPort(bridgeName, h.attachment, b.world.bridge.hairpin); err != nil {
		return err
	}
	var errs []error
	for _, a := range h.addrs {
		for _, p := range bridgeAddrs() {
			if p.Contains(a) {
				errs = append(errs,
					h.ns.AddAddress(uplinkName, netip.PrefixFrom(a, p.Bits())),
					h.ns.AddRoute(netns.Route{To: everything(a), Link: uplinkName, Via: p.Addr()}))
			}
		}
	}
	return errors.Join(errs...)
}

func (b *testbed) makeBridge() error {
	node, filtered := b.node(), "0"
	if b.world.bridge.filtered {
		filtered = "1"
	}
	errs := []error{
		node.AddBridge(bridgeName),
		node.Sysctl("net/bridge/bridge-nf-call-iptables", filtered),
		node.Sysctl("net/bridge/bridge-nf-call-ip6tables", filtered),
	}
	for _, p := range bridgeAddrs() {
		errs = append(errs, node.AddAddress(bridgeName, p))
	}
	return errors.Join(errs...)
}
