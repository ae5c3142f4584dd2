package nftables

import (
	"bytes"
	"cmp"
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// kind is the kind of a kernel object.
type kind uint8

const (
	kindTable kind = iota
	kindSet
	kindChain
	kindEndpoint
	kindHairpin
	kindClusterIP
	kindSticky
	kindNodePortClient
	kindRecord
	kindRestriction
	kindFrontend
)

// key names one object of the dataplane. Which fields count depends on the kind.
type key struct {
	kind  kind
	fam   family
	proto uint8
	pool  proxy.Pool
	// level is the rank of a chain among chains.
	level uint8
	// port and addr are those of a frontend; the address of a node port is zero.
	port uint16
	addr [16]byte
	// eport and eaddr are those of an endpoint.
	eport uint16
	eaddr [16]byte
	// name is that of a set or chain, or of a table that is not in use.
	name name
}

// value is what there is to say about an object: of a set or chain, the hash of
// its definition; of an element, the name of the chain that it leads to, none
// for drop.
type value uint64

// odd is the value of an element that leads to a chain in a way that this
// package does not use.
const odd value = 1 << 63

func to(chain name) value { return value(chain) }

func (v value) chain() name { return name(v) }

// Rank implements [backends.Key]: a restriction stands before the frontend that
// it closes is opened, and endpoints before a frontend sends anybody to them.
func (k key) Rank() int {
	switch k.kind {
	case kindChain:
		return 10 + int(k.level)
	case kindTable, kindSet:
		return int(k.kind)
	default:
		return 20 + int(k.kind)
	}
}

// Shared implements [backends.Key].
func (k key) Shared() bool {
	switch k.kind {
	case kindChain, kindSet, kindHairpin, kindClusterIP, kindSticky, kindNodePortClient:
		return true
	default:
		return false
	}
}

// slotPool names a pool of endpoints within the kernel: those that one frontend
// chooses from. Endpoints stand in slots, numbered from 0 without gaps.
type slotPool struct {
	fam   family
	proto uint8
	pool  proxy.Pool
	port  uint16
	addr  [16]byte
}

func (k *key) slotPool() slotPool {
	return slotPool{fam: k.fam, proto: k.proto, pool: k.pool, port: k.port, addr: k.addr}
}

// slot is an endpoint in its place.
type slot struct {
	addr [16]byte
	port uint16
}

func (s slot) compare(o slot) int {
	return cmp.Or(bytes.Compare(s.addr[:], o.addr[:]), cmp.Compare(s.port, o.port))
}

func (k *key) slot() slot { return slot{addr: k.eaddr, port: k.eport} }

// family is an IP family by its number in netfilter.
type family uint8

const (
	ipv4 family = 2  // NFPROTO_IPV4
	ipv6 family = 10 // NFPROTO_IPV6
)

func familyOf(f v1.IPFamily) family {
	if f == v1.IPv6Protocol {
		return ipv6
	}
	return ipv4
}

func (f family) api() v1.IPFamily {
	if f == ipv6 {
		return v1.IPv6Protocol
	}
	return v1.IPv4Protocol
}

// addrLen is the length of an address in bytes.
func (f family) addrLen() int {
	if f == ipv6 {
		return 16
	}
	return 4
}

// bytes gives an address with its octets at the beginning.
func (f family) bytes(a netip.Addr) (out [16]byte) {
	if f == ipv6 {
		return a.As16()
	}
	four := a.As4()
	copy(out[:], four[:])
	return out
}

func protocolNumber(p v1.Protocol) uint8 {
	switch p {
	case v1.ProtocolUDP:
		return 17
	case v1.ProtocolSCTP:
		return 132
	default:
		return 6
	}
}
