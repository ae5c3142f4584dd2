package kinds

import (
	"math/bits"

	"github.com/vipkit/vipkit/backends"
)

// Kind is one way to program a node.
type Kind string

// The kinds. The two flavours of iptables have tables of their own, so they are two kinds.
const (
	NFTables       Kind = "nftables"
	IPTablesNFT    Kind = "iptables-nft"
	IPTablesLegacy Kind = "iptables-legacy"
	IPVS           Kind = "ipvs"
	Userspace      Kind = "userspace"
)

// all returns all kinds.
func all() []Kind { return []Kind{NFTables, IPTablesNFT, IPTablesLegacy, IPVS, Userspace} }

// Defaults returns the default identity of a kind. The bits are none that kube-proxy or a common
// network plugin uses, except that of iptables, which is kube-proxy's.
func (k Kind) Defaults() backends.Identity {
	switch k {
	case NFTables:
		return backends.Identity{Name: backends.DefaultName, Mark: 0x1000}
	case IPVS:
		return backends.Identity{Name: backends.DefaultName, Mark: 0x20}
	case Userspace:
		return backends.Identity{Name: backends.DefaultName + "-userspace", Mark: 0x40}
	case IPTablesNFT, IPTablesLegacy:
	}
	return backends.Identity{Name: backends.DefaultName, Mark: 0x4000}
}

// firstTable begins a range of table numbers that no other program is known to use.
const firstTable = 7_690_000

// RoutingTable returns the number of the routing table of kind Userspace for the bit of an identity.
// It is also the metric of the routes in the table of local addresses.
func RoutingTable(mark uint32) int { return firstTable + bits.TrailingZeros32(mark) }

// firstPriority begins a range of priorities that no other program is known to use, before
// that of the main table's rule.
const firstPriority = 760

// RulePriority returns the priority of the routing rule of kind Userspace.
func RulePriority(mark uint32) int { return firstPriority + bits.TrailingZeros32(mark) }

// RouteProtocol is the protocol number that marks the routes of kind Userspace. No routing daemon is
// known to use it.
const RouteProtocol = 118

// SecondSuffix ends the name of the second table of kind NFTables. The name of no identity has an
// underscore.
const SecondSuffix = "_2"
