package userspace

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// kind is the kind of a kernel object.
type kind uint8

const (
	// kindRouting is the routing rule and the table by which marked packets
	// come to this host's own sockets.
	kindRouting kind = iota
	kindTable
	kindSet
	kindChain
	kindSources
	kindRestricted
	kindClusterIP
	kindFrontend
	// Of local routes only: addresses of Services that are no ClusterIPs,
	// ranges of addresses that serve node ports, and the routes.
	kindExternal
	kindNodePorts
	kindLocal
	kindBlackhole
)

// key names one object. Which fields count depends on the kind.
type key struct {
	kind kind
	fam  nfnetlink.Family
	// level is the rank of a chain among chains, name that of a set or chain; of
	// a list of source ranges it is the content.
	level uint8
	name  string
	// proto and addr are a frontend; a node port has the address zero.
	proto  uint8
	addr   netip.AddrPort
	source netip.Prefix
}

// value is what there is to say about an object: of a set or chain, a hash of
// its definition; of a frontend, the chain that it leads to.
type value struct {
	hash  uint64
	chain string
}

type (
	object = backends.Object[key, value]
	op     = backends.Op[key, value]
)

// Rank implements [backends.Key].
func (k key) Rank() int {
	if k.kind == kindChain {
		return 10 + int(k.level)
	}
	if k.kind > kindChain {
		return 100 + int(k.kind)
	}
	return int(k.kind)
}

// Shared implements [backends.Key].
func (k key) Shared() bool {
	return k.kind == kindClusterIP || k.kind == kindSources || k.kind == kindExternal || k.kind == kindLocal
}

func familyOf(f v1.IPFamily) nfnetlink.Family {
	if f == v1.IPv6Protocol {
		return nfnetlink.IPv6
	}
	return nfnetlink.IPv4
}

const (
	protoTCP  = 6
	protoUDP  = 17
	protoSCTP = 132
)

func protocolNumber(p v1.Protocol) uint8 {
	switch p {
	case v1.ProtocolUDP:
		return protoUDP
	case v1.ProtocolSCTP:
		return protoSCTP
	default:
		return protoTCP
	}
}
