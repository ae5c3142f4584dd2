package nftables

import (
	"bytes"
	"cmp"
	"net/netip"
	"unique"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// kind is the kind of a kernel object, in the order of creation: a chain refers only to
// chains of lower kinds, and a frontend is added after its restriction and its endpoints.
type kind uint8

const (
	kindTable kind = iota
	kindSet
	kindRejectChain
	kindPickChain
	kindStickChain
	kindMasqueradeChain
	kindSourceChain
	kindDispatchChain
	kindBaseChain
	kindEndpoint
	kindHairpin
	kindClusterIP
	kindSticky
	kindNodePortClient
	kindRecord
	kindRestriction
	kindFrontend
)

func (k kind) isChain() bool { return k >= kindRejectChain && k <= kindBaseChain }

// handle represents the name of a set, chain or table; the zero value is no name. Handles
// are small, and comparing them is as fast as comparing numbers.
type handle = unique.Handle[string]

// handleOf returns the handle of a name.
func handleOf(name string) handle {
	if name == "" {
		return handle{}
	}
	return unique.Make(name)
}

// text returns the name that a handle represents.
func text(h handle) string {
	if h == (handle{}) {
		return ""
	}
	return h.Value()
}

// key identifies one object of the dataplane. Its kind decides which other fields are set.
type key struct {
	kind  kind
	fam   nfnetlink.Family
	proto uint8
	pool  proxy.Pool
	// port and addr are the port and address of a frontend; the address of a node port is zero.
	port uint16
	addr [16]byte
	// eport and eaddr are the port and address of an endpoint.
	eport uint16
	eaddr [16]byte
	// name is the name of a set or chain.
	name handle
}

// value is the definition of an object, as far as its key does not give it.
type value struct {
	// hash is the hash of the definition of a set or chain. An element whose verdict
	// this package does not write has hash foreignVerdict.
	hash uint64
	// chain is the chain of an element's jump or goto, none for drop.
	chain handle
}

const foreignVerdict = 1

func to(chain handle) value { return value{chain: chain} }

type (
	object = backends.Object[key, value]
	op     = backends.Op[key, value]
)

// Rank implements [backends.Key].
func (k key) Rank() int { return int(k.kind) }

// Shared implements [backends.Key].
func (k key) Shared() bool {
	switch k.kind {
	case kindSet, kindHairpin, kindClusterIP, kindSticky, kindNodePortClient:
		return true
	default:
		return k.kind.isChain()
	}
}

// slotPool identifies the endpoints that one frontend chooses from in one pool. They are in
// slots, numbered from 0 without gaps.
type slotPool struct {
	fam   nfnetlink.Family
	proto uint8
	pool  proxy.Pool
	port  uint16
	addr  [16]byte
}

func (k *key) slotPool() slotPool {
	return slotPool{fam: k.fam, proto: k.proto, pool: k.pool, port: k.port, addr: k.addr}
}

// slot is the endpoint in a slot; the zero value is an empty slot.
type slot struct {
	addr [16]byte
	port uint16
}

func (s slot) compare(o slot) int {
	return cmp.Or(bytes.Compare(s.addr[:], o.addr[:]), cmp.Compare(s.port, o.port))
}

func (k *key) slot() slot { return slot{addr: k.eaddr, port: k.eport} }

// frontend returns the address and port of a frontend; a node port has the unspecified address.
func (k *key) frontend() netip.AddrPort {
	a := netip.AddrFrom16(k.addr)
	if k.fam == nfnetlink.IPv4 {
		a = netip.AddrFrom4([4]byte(k.addr[:4]))
	}
	return netip.AddrPortFrom(a, k.port)
}

// bytesOf returns the octets of an address, an IPv4 address in the first four.
func bytesOf(fam nfnetlink.Family, a netip.Addr) (out [16]byte) {
	if fam == nfnetlink.IPv6 {
		return a.As16()
	}
	four := a.As4()
	copy(out[:], four[:])
	return out
}
