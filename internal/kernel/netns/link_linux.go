package netns

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// End is one end of a link: an interface in a namespace.
type End struct {
	NS   *NS
	Name string
}

// Link connects two namespaces by a pair of virtual Ethernet interfaces and brings
// both up; when it returns they pass packets. The link exists until one of its
// interfaces or namespaces is removed.
func Link(a, b End) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = a.Name
	pair := netlink.NewVeth(attrs)
	pair.PeerName = b.Name
	pair.PeerNamespace = netlink.NsFd(b.NS.file.Fd())
	if err := a.NS.netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("netns: link %s to %s: %w", a.Name, b.Name, err)
	}
	for _, end := range []End{a, b} {
		l, err := end.NS.link(end.Name)
		if err != nil {
			return err
		}
		if err := netlinkUp(end.NS.netlink, l); err != nil {
			return err
		}
	}
	return errors.Join(a.awaitUp(), b.awaitUp())
}

// awaitUp waits until the interface passes packets. The kernel detects the
// carrier in the background, and drops packets until then.
func (e End) awaitUp() error {
	return await("interface "+e.Name+" is up", func() (bool, error) {
		l, err := e.NS.link(e.Name)
		if err != nil {
			return false, err
		}
		return l.Attrs().OperState == netlink.OperUp, nil
	})
}

// AddBridge makes a bridge and brings it up. The bridge passes packets once it has a
// port (see [NS.AddPort]).
func (n *NS) AddBridge(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	b := &netlink.Bridge{LinkAttrs: attrs}
	if err := n.netlink.LinkAdd(b); err != nil {
		return fmt.Errorf("netns: add bridge %s: %w", name, err)
	}
	return netlinkUp(n.netlink, b)
}

// AddPort makes an interface a port of a bridge. With hairpin, the bridge may send a
// packet out of the port on which it was received.
func (n *NS) AddPort(bridge, link string, hairpin bool) error {
	b, err := n.link(bridge)
	if err != nil {
		return err
	}
	l, err := n.link(link)
	if err != nil {
		return err
	}
	if err := n.netlink.LinkSetMaster(l, b); err != nil {
		return fmt.Errorf("netns: make %s a port of %s: %w", link, bridge, err)
	}
	if err := n.netlink.LinkSetHairpin(l, hairpin); err != nil {
		return fmt.Errorf("netns: set hairpin of %s: %w", link, err)
	}
	return End{NS: n, Name: bridge}.awaitUp()
}

// Tunnel describes one end of a VXLAN between two hosts.
type Tunnel struct {
	Name string
	// Over is the interface that sends the packets of the tunnel, from Local to Remote.
	Over          string
	Local, Remote netip.Addr
	MTU           int
}

// AddVXLAN makes one end of a VXLAN, and brings it up. The other end must be made on the
// other host.
func (n *NS) AddVXLAN(t Tunnel) error {
	over, err := n.link(t.Over)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = t.Name, t.MTU
	v := &netlink.Vxlan{
		LinkAttrs: attrs, VxlanId: 1, Port: 4789, VtepDevIndex: over.Attrs().Index,
		SrcAddr: t.Local.AsSlice(), Group: t.Remote.AsSlice(), Learning: true,
	}
	if err := n.netlink.LinkAdd(v); err != nil {
		return fmt.Errorf("netns: add VXLAN %s: %w", t.Name, err)
	}
	return netlinkUp(n.netlink, v)
}

// HardwareAddr returns the hardware address of an interface.
func (n *NS) HardwareAddr(link string) (net.HardwareAddr, error) {
	l, err := n.link(link)
	if err != nil {
		return nil, err
	}
	return l.Attrs().HardwareAddr, nil
}

// AddAddress adds an address to an interface. It can be used as soon as AddAddress
// returns: there is no duplicate address detection.
func (n *NS) AddAddress(link string, p netip.Prefix) error {
	return n.addAddress(link, &netlink.Addr{IPNet: ipNet(p), Flags: unix.IFA_F_NODAD})
}

// AddSecondary is AddAddress for a deprecated IPv6 address: the kernel accepts
// packets to it, but prefers others as the source of new traffic.
func (n *NS) AddSecondary(link string, p netip.Prefix) error {
	return n.addAddress(link, &netlink.Addr{
		IPNet: ipNet(p), Flags: unix.IFA_F_NODAD,
		ValidLft: math.MaxInt32, PreferedLft: 0,
	})
}

func (n *NS) addAddress(link string, a *netlink.Addr) error {
	l, err := n.link(link)
	if err != nil {
		return err
	}
	if err := n.netlink.AddrAdd(l, a); err != nil {
		return fmt.Errorf("netns: add %v to %s: %w", a.IPNet, link, err)
	}
	// For IPv6 the kernel adds the local route in the background, even without
	// duplicate address detection.
	return await(a.IP.String()+" is local", func() (bool, error) {
		routes, err := n.netlink.RouteGet(a.IP)
		// Without the local route, the address may have no route, or a blackhole route.
		if err != nil && !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EINVAL) {
			return false, fmt.Errorf("netns: route to %v: %w", a.IP, err)
		}
		return len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL, nil
	})
}

// Route is a route of the kernel.
type Route struct {
	// To are the destinations: a zero-length prefix is the default route.
	To netip.Prefix
	// Link is the output interface.
	Link string
	// Via is the next hop, which is assumed to be on the link. Without it, the
	// destinations themselves are on the link.
	Via netip.Addr
	// Local makes the addresses of To local: the kernel delivers packets to them in
	// this namespace. Link is then the loopback interface.
	Local bool
	// Table is the routing table; 0 is the main one. Other tables need a [Rule].
	Table int
}

// AddRoute adds a route.
func (n *NS) AddRoute(r Route) error {
	l, err := n.link(r.Link)
	if err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(r.To), Table: r.Table}
	switch {
	case r.Local:
		route.Type, route.Table, route.Scope = unix.RTN_LOCAL, unix.RT_TABLE_LOCAL, netlink.SCOPE_HOST
	case r.Via.IsValid():
		route.Gw = r.Via.AsSlice()
		route.Flags = int(netlink.FLAG_ONLINK)
	default:
		route.Scope = netlink.SCOPE_LINK
	}
	if err := n.netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("netns: add route %v: %w", r, err)
	}
	return nil
}

// Rule sends packets to a routing table.
type Rule struct {
	// Priority orders the rules, lowest first. The kernel's own rule for the main
	// table has 32766.
	Priority int
	// From and To match the addresses of packets; prefixes that are not valid match all.
	From, To netip.Prefix
	// Mark and Mask match the packets' mark; all if Mask is 0.
	Mark, Mask uint32
	// Family is [unix.AF_INET] or [unix.AF_INET6].
	Family int
	Table  int
}

// AddRule adds a rule.
func (n *NS) AddRule(r Rule) error {
	rule := netlink.NewRule()
	rule.Priority, rule.Family, rule.Table = r.Priority, r.Family, r.Table
	if r.From.IsValid() {
		rule.Src = ipNet(r.From)
	}
	if r.To.IsValid() {
		rule.Dst = ipNet(r.To)
	}
	if r.Mask != 0 {
		rule.Mark, rule.Mask = r.Mark, &r.Mask
	}
	if err := n.netlink.RuleAdd(rule); err != nil {
		return fmt.Errorf("netns: add rule %v: %w", r, err)
	}
	return nil
}

// AddNeighbor adds a permanent neighbour entry for an IP address on a link, so that
// the kernel needs no ARP or neighbour discovery.
func (n *NS) AddNeighbor(link string, ip netip.Addr, hw net.HardwareAddr) error {
	l, err := n.link(link)
	if err != nil {
		return err
	}
	err = n.netlink.NeighAdd(&netlink.Neigh{
		LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT,
		IP: ip.AsSlice(), HardwareAddr: hw,
	})
	if err != nil {
		return fmt.Errorf("netns: add neighbour %v on %s: %w", ip, link, err)
	}
	return nil
}

// await waits for work that the kernel does in the background. On an idle machine that
// takes milliseconds, on a starved one seconds.
func await(what string, isSo func() (bool, error)) error {
	for end := time.Now().Add(awaitTimeout); ; time.Sleep(200 * time.Microsecond) {
		switch so, err := isSo(); {
		case so || err != nil:
			return err
		case time.Now().After(end):
			return fmt.Errorf("netns: timeout after %v while waiting until %s", awaitTimeout, what)
		}
	}
}

// awaitTimeout is the time after which await gives up.
const awaitTimeout = 30 * time.Second

func (n *NS) link(name string) (netlink.Link, error) {
	l, err := n.netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("netns: interface %s: %w", name, err)
	}
	return l, nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
