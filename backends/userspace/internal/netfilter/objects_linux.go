package netfilter

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
)

// kind is the kind of a kernel object.
type kind uint8

const (
	// kindRouting is the routing rule and the routes by which packets get to the listeners.
	kindRouting kind = iota
	kindTable
	kindSet
	kindChain
	kindSources
	kindRestricted
	kindClusterIP
	kindFrontend
)

// Key names one object. The kind determines which fields are set.
type Key struct {
	kind kind
	fam  nfnetlink.Family
	// level is the rank of a chain among the chains of its kind, name the name of a set or chain.
	level uint8
	name  string
	// protocol and addr are a frontend; a node port has the address zero.
	protocol uint8
	addr     netip.AddrPort
}

// Value is the content of an object.
type Value struct {
	definition uint64       // of a set or chain: the hash of its definition
	routing    routingState // of the routing
	chain      string       // of a frontend: the chain that it leads to
}

type (
	// Object is an object as it is rendered.
	Object = backends.Object[Key, Value]
	op     = backends.Op[Key, Value]
)

// Rank implements [backends.Key].
func (k Key) Rank() int {
	switch {
	case k.kind == kindChain && k.level == levelForeign:
		return 90
	case k.kind == kindChain, k.kind == kindSources:
		return 10*int(k.kind) + int(k.level)
	case k.kind > kindSources:
		return 100 + int(k.kind)
	}
	return int(k.kind)
}

// Shared implements [backends.Key].
func (k Key) Shared() bool {
	return k.kind == kindClusterIP || k.kind == kindSources
}

func familyOf(fam nfnetlink.Family) v1.IPFamily {
	if fam == nfnetlink.IPv6 {
		return v1.IPv6Protocol
	}
	return v1.IPv4Protocol
}
