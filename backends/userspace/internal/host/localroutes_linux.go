package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/netns"
)

// LocalRoutes are the routes of a backend in the table of local addresses. Their
// metric is the number of the identity's routing table. The kernel's own routes for
// addresses have metric 0, so that both can exist.
type LocalRoutes struct {
	handle *netlink.Handle
	metric int
}

// LocalRoutes returns the local routes of the backend.
func (c *Config) LocalRoutes() *LocalRoutes {
	return &LocalRoutes{handle: c.Sockets.Netlink(), metric: c.Table()}
}

// route returns a route.
func (l *LocalRoutes) route(to netip.Prefix) (*netlink.Route, error) {
	lo, err := l.handle.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("userspace: the interface lo: %w", err)
	}
	return &netlink.Route{
		Family: SocketFamily(ipaddr.FamilyOf(to.Addr())), Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())},
		Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Protocol: kinds.RouteProtocol, Priority: l.metric,
		LinkIndex: lo.Attrs().Index, Scope: netlink.SCOPE_HOST,
	}, nil
}

// List returns the existing routes of an IP family, of any kind.
func (l *LocalRoutes) List(f v1.IPFamily) ([]netlink.Route, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: kinds.RouteProtocol}
	all, err := netns.Consistent(func() ([]netlink.Route, error) {
		return l.handle.RouteListFiltered(SocketFamily(f), filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, fmt.Errorf("userspace: listing local routes: %w", err)
	}
	var own []netlink.Route
	for i := range all {
		if all[i].Priority == l.metric {
			own = append(own, all[i])
		}
	}
	return own, nil
}

// Put adds or replaces a route.
func (l *LocalRoutes) Put(to netip.Prefix) error {
	r, err := l.route(to)
	if err != nil {
		return err
	}
	if err := l.handle.RouteReplace(r); err != nil {
		return fmt.Errorf("userspace: adding the local route to %v: %w", to, err)
	}
	return nil
}

// DeleteListed removes routes that List has returned. Routes that no longer exist are no error.
func (l *LocalRoutes) DeleteListed(all ...netlink.Route) error {
	for i := range all {
		if err := l.handle.RouteDel(&all[i]); !IsGone(err) {
			return fmt.Errorf("userspace: removing a local route: %w", err)
		}
	}
	return nil
}

// IsGone reports whether a removal succeeded, or failed since there was nothing to
// remove.
func IsGone(err error) bool {
	return err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EAFNOSUPPORT)
}

// Destination returns the destination prefix of a route.
func Destination(r *netlink.Route) netip.Prefix {
	if r.Dst == nil {
		return netip.Prefix{}
	}
	addr, _ := netip.AddrFromSlice(r.Dst.IP)
	bits, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits)
}
