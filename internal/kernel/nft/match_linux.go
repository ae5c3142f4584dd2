package nft

import (
	"net/netip"

	"github.com/google/nftables/expr"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// FromPods returns one statement for each criterion by which the node identifies packets
// of its pods.
func (a *Assembler) FromPods(t proxy.LocalTraffic) []Statement {
	var all []Statement
	for _, p := range t.Sources {
		if a.Holds(p) {
			all = append(all, a.SourceIn(p))
		}
	}
	return append(all, a.interfaces(expr.MetaKeyIIFNAME, t)...)
}

// BridgedFromPods returns one statement for each criterion by an interface, as [Assembler.FromPods] does, for
// packets in the hook postrouting that stay on a Linux bridge. The kernel passes such a packet without its
// input interface; the output interface is the bridge that received the packet. Packets of the node's
// processes have no input interface, either.
func (a *Assembler) BridgedFromPods(t proxy.LocalTraffic) []Statement {
	all := a.interfaces(expr.MetaKeyOIFNAME, t)
	for i, out := range all {
		all[i] = Join(a.noInput(), out)
	}
	return all
}

// interfaces returns one statement for each criterion by an interface. The key is the interface to compare.
func (a *Assembler) interfaces(key expr.MetaKey, t proxy.LocalTraffic) (all []Statement) {
	if t.Interface != "" {
		all = append(all, a.Interface(key, t.Interface, expr.CmpOpEq))
	}
	if t.InterfacePrefix != "" {
		all = append(all, a.InterfacePrefix(key, t.InterfacePrefix))
	}
	return all
}

// Holds reports whether a prefix is of the family of the table.
func (a *Assembler) Holds(p netip.Prefix) bool {
	return p.Addr().Is4() == (a.Family == nfnetlink.IPv4)
}

// NodePorts adds the rules that look up packets in a map of node ports. They match packets
// to the node's addresses at which node ports are served, but never to loopback addresses.
func (a *Assembler) NodePorts(at proxy.NodePortAddresses, set string) {
	within := []Statement{nil}
	if !at.All {
		within = nil
		for _, p := range at.Prefixes {
			if a.Holds(p) {
				within = append(within, a.DestIn(p))
			}
		}
	}
	for _, addresses := range within {
		a.Rule(a.DestNotLoopback(), addresses, a.DestIsLocal(), a.VerdictMap(set, true))
	}
}

// PriorityUnserved is the priority of the base chains of Unserved: behind those that translate
// destinations, whatever priority an identity gives them.
const PriorityUnserved = -49

// Unserved adds the rules for packets that nobody has translated and that would leave the node:
// they reject packets to other ports of ClusterIPs, and drop packets to other addresses of the
// Service CIDRs.
func (a *Assembler) Unserved(clusterIPs string, cidrs []netip.Prefix) {
	a.Reject(a.DestInSet(clusterIPs), a.DestNotLocal())
	for _, cidr := range cidrs {
		if a.Holds(cidr) {
			a.Rule(a.DestIn(cidr), a.DestNotLocal(), a.Drop())
		}
	}
}
