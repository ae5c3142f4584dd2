package userspace

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// routeProtocol is the number by which routes say whose they are, one that no
// routing daemon is known to use.
const routeProtocol = 118

// localRoutes are the routes of a backend in the table of local addresses. Their
// metric is the number of the identity: the routes that the kernel makes of
// addresses have metric 0, and stand beside them.
type localRoutes struct {
	handle *netlink.Handle
	number int
}

func (l *localRoutes) metric() int { return firstTable + l.number }

// route gives a route of a kind (unix.RTN_LOCAL and so on).
func (l *localRoutes) route(to netip.Prefix, kind int) (*netlink.Route, error) {
	r := &netlink.Route{
		Family: unix.AF_INET, Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())},
		Table: unix.RT_TABLE_LOCAL, Type: kind, Protocol: routeProtocol, Priority: l.metric(),
	}
	if to.Addr().Is6() {
		r.Family = unix.AF_INET6
	}
	if kind == unix.RTN_LOCAL {
		lo, err := l.handle.LinkByName("lo")
		if err != nil {
			return nil, fmt.Errorf("userspace: the interface lo: %w", err)
		}
		r.LinkIndex, r.Scope = lo.Attrs().Index, netlink.SCOPE_HOST
	}
	return r, nil
}

// list gives those that there are, of any kind.
func (l *localRoutes) list(fam nfnetlink.Family) ([]netlink.Route, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: routeProtocol}
	all, err := whole(func() ([]netlink.Route, error) {
		return l.handle.RouteListFiltered(linkFamily(fam), filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, fmt.Errorf("userspace: listing local routes: %w", err)
	}
	var own []netlink.Route
	for i := range all {
		if all[i].Priority == l.metric() {
			own = append(own, all[i])
		}
	}
	return own, nil
}

func (l *localRoutes) put(to netip.Prefix, kind int, source netip.Addr) error {
	r, err := l.route(to, kind)
	if err != nil {
		return err
	}
	if source.IsValid() {
		r.Src = source.AsSlice()
	}
	if err := l.handle.RouteReplace(r); err != nil {
		return fmt.Errorf("userspace: making %v local: %w", to, err)
	}
	return nil
}

// take takes a route away, if it is there.
func (l *localRoutes) take(to netip.Prefix, kind int) error {
	r, err := l.route(to, kind)
	if err != nil {
		return err
	}
	return l.drop(*r)
}

func (l *localRoutes) drop(all ...netlink.Route) error {
	for i := range all {
		if err := l.handle.RouteDel(&all[i]); !isGone(err) {
			return fmt.Errorf("userspace: removing a local route: %w", err)
		}
	}
	return nil
}

// destination gives where a route leads to.
func destination(r *netlink.Route) netip.Prefix {
	if r.Dst == nil {
		return netip.Prefix{}
	}
	addr, _ := netip.AddrFromSlice(r.Dst.IP)
	bits, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits)
}
