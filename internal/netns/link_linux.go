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

// Link joins two namespaces by a pair of virtual Ethernet interfaces and brings
// both up; when it returns they pass packets. The link goes when one of its ends
// or one of the namespaces goes.
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

// awaitUp waits until the interface passes packets. The kernel takes notice of
// the carrier in the background, and drops packets until then.
func (e End) awaitUp() error {
	return await("interface "+e.Name+" is up", func() (bool, error) {
		l, err := e.NS.link(e.Name)
		if err != nil {
			return false, err
		}
		return l.Attrs().OperState == netlink.OperUp, nil
	})
}

// AddBridge makes a bridge and brings it up. It passes packets as soon as it has a
// port that does (see [NS.AddPort]).
func (n *NS) AddBridge(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	b := &netlink.Bridge{LinkAttrs: attrs}
	if err := n.netlink.LinkAdd(b); err != nil {
		return fmt.Errorf("netns: add bridge %s: %w", name, err)
	}
	return netlinkUp(n.netlink, b)
}

// AddPort makes an interface a port of a bridge. With hairpin, the port may send out
// again what came in by it.
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
	// Over is the interface by which packets leave, from Local to Remote.
	Over          string
	Local, Remote netip.Addr
	MTU           int
}

// AddVXLAN makes an interface that leads to another host, and brings it up. The other
// end must be made likewise.
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

// HardwareAddr gives the hardware address of an interface.
func (n *NS) HardwareAddr(link string) (net.HardwareAddr, error) {
	l, err := n.link(link)
	if err != nil {
		return nil, err
	}
	return l.Attrs().HardwareAddr, nil
}

// AddAddress gives an interface an address. It can be used as soon as AddAddress
// returns: IPv6 does not look for duplicates.
func (n *NS) AddAddress(link string, p netip.Prefix) error {
	return n.addAddress(link, &netlink.Addr{IPNet: ipNet(p), Flags: unix.IFA_F_NODAD})
}

// AddSecondary is AddAddress for an address that packets may come to, but that
// IPv6 does not choose as the source of new traffic while there is another one.
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
	// IPv6 makes the route that packets to the address are delivered by in
	// the background, even without a look for duplicates.
	return await(a.IP.String()+" is local", func() (bool, error) {
		routes, err := n.netlink.RouteGet(a.IP)
		if err != nil && !errors.Is(err, unix.ENETUNREACH) {
			return false, fmt.Errorf("netns: route to %v: %w", a.IP, err)
		}
		return len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL, nil
	})
}

// Route says where packets go.
type Route struct {
	// To are the destinations: a zero-length prefix is the default route.
	To netip.Prefix
	// Link is the interface by which the packets leave.
	Link string
	// Via is the next hop, which is taken to be on the link. Without it the
	// destinations themselves are there.
	Via netip.Addr
	// Local has the packets delivered to this namespace instead, whose own
	// all addresses of To become. Link is then the loopback interface.
	Local bool
	// Table is the routing table; 0 is the main one. Rules lead to others.
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

// Rule has packets looked up in a routing table.
type Rule struct {
	// Priority is its place: the least one comes first. The kernel's own rule for the
	// main table has 32766.
	Priority int
	// From and To are those of the packets, all if not valid.
	From, To netip.Prefix
	// Mark and Mask are those of the packets' mark; none if Mask is 0.
	Mark, Mask uint32
	// Family is that of the packets: [unix.AF_INET] or [unix.AF_INET6].
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

// AddNeighbor says once and for all which hardware address an IP address on a
// link has, so that nobody has to be asked for it.
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

// await waits for what the kernel does in the background, within milliseconds
// on an idle machine.
func await(what string, isSo func() (bool, error)) error {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(200 * time.Microsecond) {
		switch so, err := isSo(); {
		case so || err != nil:
			return err
		case time.Now().After(end):
			return fmt.Errorf("netns: waited 5 s in vain until %s", what)
		}
	}
}

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
