package lab

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/netns"
)

// uplinkName is the interface of a host to its uplink.
const uplinkName = "eth0"

// link is the link of a host to its uplink.
type link struct {
	up, host netns.End
	// at is the interface of the uplink that has addresses: the link itself, or its bridge.
	at                            string
	addrs, gateway, owned, behind []netip.Prefix
}

// attach links a host to its uplink.
func (l *Lab) attach(h Host, ns *netns.NS) error {
	x := link{up: netns.End{NS: l.NS(h.Uplink), Name: cmp.Or(h.Link, h.Name)}, host: netns.End{NS: ns, Name: uplinkName}}
	x.at = cmp.Or(h.Bridge, x.up.Name)
	err := errors.Join(parse(&x.addrs, h.Addrs), parse(&x.gateway, h.Gateway), parse(&x.owned, h.Owned), parse(&x.behind, h.Behind))
	if err == nil {
		err = errors.Join(x.up.NS.Forward(), netns.Link(x.up, x.host))
	}
	if err != nil {
		return err
	}
	if h.Bridge == "" {
		return errors.Join(x.addGateway(), x.addNeighbors(), x.addHost(), x.addRoutes())
	}
	if bridge := (netns.End{NS: x.up.NS, Name: h.Bridge}); !l.bridges[bridge] {
		l.bridges[bridge] = true
		err = errors.Join(x.up.NS.AddBridge(h.Bridge), x.addGateway())
	}
	return errors.Join(err, x.up.NS.AddPort(h.Bridge, x.up.Name, h.Hairpin), x.addHost(), x.addRoutes())
}

// addGateway gives the uplink its addresses.
func (x *link) addGateway() error {
	var errs []error
	for _, p := range x.gateway {
		errs = append(errs, x.up.NS.AddAddress(x.at, p))
	}
	return errors.Join(errs...)
}

// addNeighbors adds static neighbour entries, so that no packet waits for ARP or neighbour discovery.
func (x *link) addNeighbors() error {
	above, errAbove := x.up.NS.HardwareAddr(x.up.Name)
	below, errBelow := x.host.NS.HardwareAddr(x.host.Name)
	errs := []error{errAbove, errBelow}
	for i, p := range x.addrs {
		errs = append(errs, x.up.NS.AddNeighbor(x.up.Name, p.Addr(), below))
		if x.isFirst(i) {
			errs = append(errs, x.host.NS.AddNeighbor(x.host.Name, x.hop(p), above))
		}
	}
	return errors.Join(errs...)
}

// addHost gives the host its addresses and default routes, and what it owns.
func (x *link) addHost() error {
	var errs []error
	for i, p := range x.addrs {
		errs = append(errs, x.host.NS.AddAddress(x.host.Name, p))
		if x.isFirst(i) {
			errs = append(errs, x.host.NS.AddRoute(netns.Route{To: everything(p), Link: x.host.Name, Via: x.hop(p)}))
		}
	}
	for _, p := range x.owned {
		errs = append(errs,
			// Without it, IPv6 refuses to send from addresses that only a route makes local.
			x.host.NS.Sysctl("net/ipv6/ip_nonlocal_bind", "1"),
			x.host.NS.AddRoute(netns.Route{To: p, Link: "lo", Local: true}))
	}
	return errors.Join(errs...)
}

// addRoutes routes packets of the uplink to the host.
func (x *link) addRoutes() error {
	var errs []error
	for _, p := range x.addrs {
		if a := p.Addr(); !contain(x.gateway, a) {
			errs = append(errs, x.up.NS.AddRoute(netns.Route{To: netip.PrefixFrom(a, a.BitLen()), Link: x.at}))
		}
	}
	isBehind := func(p netip.Prefix) bool { return contain(x.behind, p.Addr()) }
	for _, p := range slices.Concat(x.behind, slices.DeleteFunc(x.owned, isBehind)) {
		first := slices.IndexFunc(x.addrs, func(a netip.Prefix) bool { return a.Addr().Is4() == p.Addr().Is4() })
		if first < 0 {
			return fmt.Errorf("route to %v: the host has no address of this family", p)
		}
		errs = append(errs, x.up.NS.AddRoute(netns.Route{To: p, Link: x.at, Via: x.addrs[first].Addr()}))
	}
	return errors.Join(errs...)
}

// isFirst reports whether address i is the first one of its family.
func (x *link) isFirst(i int) bool {
	return !slices.ContainsFunc(x.addrs[:i], func(p netip.Prefix) bool { return p.Addr().Is4() == x.addrs[i].Addr().Is4() })
}

// hop is the next hop of the default route of the host in the family of p. Without an address of the
// uplink it is one that no interface has.
func (x *link) hop(p netip.Prefix) netip.Addr {
	for _, g := range x.gateway {
		if g.Addr().Is4() == p.Addr().Is4() {
			return g.Addr()
		}
	}
	if p.Addr().Is4() {
		return netip.AddrFrom4([4]byte{169, 254, 1, 1})
	}
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 15: 1})
}

func contain(all []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}

// everything is the destination of the default route in the family of p.
func everything(p netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(ipaddr.Unspecified(ipaddr.FamilyOf(p.Addr())), 0)
}

// parse appends the prefixes of a text.
func parse(to *[]netip.Prefix, text string) error {
	for word := range strings.FieldsSeq(text) {
		p, err := netip.ParsePrefix(word)
		if err != nil {
			return err
		}
		*to = append(*to, p)
	}
	return nil
}
