package backendtest

import (
	"errors"
	"net/netip"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
)

// nodeAddr is a further address of the node.
type nodeAddr struct {
	link string
	addr netip.Prefix
	// towards are the destinations for which the node selects it as source.
	towards []netip.Prefix
}

func (a nodeAddr) sourceAddrs() (all []sourceAddr) {
	for _, p := range a.towards {
		all = append(all, sourceAddr{a.addr.Addr(), p})
	}
	if len(all) == 0 {
		all = append(all, sourceAddr{addr: a.addr.Addr()})
	}
	return all
}

// idleName is an interface without other hosts behind it.
const idleName = "idle0"

// severalAddrs are two more addresses at the first interface, of which the second is a
// secondary address of the other; one at the interface towards the other node, before the
// node's own; one in the range of clients; and one at the idle interface.
func severalAddrs() []nodeAddr {
	var all []nodeAddr
	add := func(link string, addrs []netip.Prefix, towards ...string) {
		for _, a := range addrs {
			n := nodeAddr{link: link, addr: a}
			for _, p := range snapshots.Prefixes(towards...) {
				if p.Addr().Is4() == a.Addr().Is4() {
					n.towards = append(n.towards, p)
				}
			}
			all = append(all, n)
		}
	}
	add("eth0", snapshots.Prefixes("172.18.2.3/24", "172.18.2.4/24", "fd00:18:2::3/64", "fd00:18:2::4/64"))
	add("eth1", snapshots.Prefixes("172.18.3.2/32", "fd00:18:3::2/128"), "10.1.0.0/24", "172.18.0.3/32", "fd00:10:1::/64")
	add("eth2", snapshots.Prefixes("192.0.2.1/24", "2001:db8:1::1/64"), "192.0.2.10/32", "2001:db8:1::a/128")
	add(idleName, snapshots.Prefixes("172.18.4.9/32", "fd00:18:4::9/128"))
	// The source of packets to a secondary address is the first address of its range.
	return append(all, nodeAddr{towards: snapshots.Prefixes("172.18.2.4/32"), addr: all[0].addr})
}

// addrsAt returns the addresses of the node at an interface towards another host. The kernel
// prefers the first one of IPv4 and the last one of IPv6; at eth0 that is the node's own.
func (w *world) addrsAt(link string) (all []netip.Prefix) {
	for _, own := range cluster.Hosts()[0].Addrs {
		if !w.has(own) {
			continue
		}
		further := w.furtherAt(link, own)
		if (link == "eth0") == own.Is4() {
			all = append(append(all, cluster.Single(own)), further...)
		} else {
			all = append(append(all, further...), cluster.Single(own))
		}
	}
	return all
}

// furtherAt returns the further addresses of the node at an interface, in the family of an address.
func (w *world) furtherAt(link string, family netip.Addr) (all []netip.Prefix) {
	for _, a := range w.addrs {
		if a.link == link && a.addr.Addr().Is4() == family.Is4() {
			all = append(all, a.addr)
		}
	}
	return all
}

// addIdle adds the secondary addresses of the node, and the idle interface with its addresses.
func (b *testbed) addIdle() error {
	var errs []error
	for _, a := range cluster.SecondaryAddrs() {
		if b.world.has(a) {
			errs = append(errs, b.node().AddSecondary(b.host(cluster.Gateway).Link, cluster.Single(a)))
		}
	}
	for i, a := range b.host(cluster.Node).Addrs {
		for j, p := range b.world.furtherAt(idleName, a) {
			if i+j == 0 {
				errs = append(errs, b.node().AddBridge(idleName))
			}
			errs = append(errs, b.node().AddAddress(idleName, p))
		}
	}
	return errors.Join(errs...)
}

// nodePortFlights returns packets to node ports at all additional addresses of the node in
// this world.
func (b *testbed) nodePortFlights(ports ...uint16) (all []flight) {
	for _, s := range b.world.sourceAddrs() {
		for _, from := range []cluster.Name{cluster.Client, cluster.Local, cluster.Node, cluster.Outside} {
			for _, protocol := range transports() {
				for _, port := range ports {
					all = append(all, flight{from: from, to: netip.AddrPortFrom(s.addr, port), protocol: protocol})
				}
			}
		}
	}
	return all
}
