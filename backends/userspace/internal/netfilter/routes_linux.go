package netfilter

import (
	"errors"
	"fmt"
	"net"
	"reflect"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/proxy"
)

// markRoutes routes marked packets to this host's sockets, whatever their destination: a
// routing rule for the mark selects a table in which every address is local. The position of
// the mark's bit determines the rule's priority and the table's number.
type markRoutes struct {
	*host.Config
	handle *netlink.Handle
}

func (r *markRoutes) rule(f v1.IPFamily) *netlink.Rule {
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table = host.SocketFamily(f), r.RulePriority(), r.Table()
	mask := r.Identity.Mark
	rule.Mark, rule.Mask = mask, &mask
	return rule
}

func (r *markRoutes) route(f v1.IPFamily) (*netlink.Route, error) {
	lo, err := r.handle.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("userspace: the interface lo: %w", err)
	}
	everything := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	if f == v1.IPv6Protocol {
		everything = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &netlink.Route{
		Family: host.SocketFamily(f), LinkIndex: lo.Attrs().Index, Dst: everything,
		Table: r.Table(), Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
	}, nil
}

// rules lists the routing rules with the backend's priority that select its table. Those for
// another mark, or with other conditions, are foreign.
func (r *markRoutes) rules(f v1.IPFamily) (own, foreign []netlink.Rule, err error) {
	want := r.rule(f)
	all, err := netns.Consistent(func() ([]netlink.Rule, error) {
		return r.handle.RuleListFiltered(host.SocketFamily(f), want, netlink.RT_FILTER_PRIORITY|netlink.RT_FILTER_TABLE)
	})
	if errors.Is(err, unix.EAFNOSUPPORT) { // the kernel has no IPv6
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("userspace: listing routing rules: %w", err)
	}
	for i := range all {
		if reflect.DeepEqual(all[i], *want) {
			own = append(own, all[i])
		} else {
			foreign = append(foreign, all[i])
		}
	}
	return own, foreign, nil
}

// local lists the routes of the backend's table, which should have one: by a foreign one, some
// marked packets would be routed elsewhere.
func (r *markRoutes) local(f v1.IPFamily) (own, foreign []netlink.Route, err error) {
	all, err := netns.Consistent(func() ([]netlink.Route, error) {
		return r.handle.RouteListFiltered(host.SocketFamily(f), &netlink.Route{Table: r.Table()}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("userspace: listing routes: %w", err)
	}
	for i := range all {
		if all[i].Type == unix.RTN_LOCAL && host.Destination(&all[i]).Bits() == 0 {
			own = append(own, all[i])
		} else {
			foreign = append(foreign, all[i])
		}
	}
	return own, foreign, nil
}

// state reports whether the rule and the route exist, and no others.
func (r *markRoutes) state(f v1.IPFamily) (routingState, error) {
	own, foreign, err := r.rules(f)
	if err != nil {
		return routingAbsent, err
	}
	route, others, err := r.local(f)
	if err != nil {
		return routingAbsent, err
	}
	switch needed, excess := min(1, len(own))+min(1, len(route)), len(own)+len(route)+len(foreign)+len(others); {
	case excess == 0:
		return routingAbsent, nil
	case needed == 2 && excess == 2:
		return routingComplete, nil
	}
	return routingPartial, nil
}

// add adds rule and route, unless they exist, and then removes foreign ones, so that packets
// are routed all the time. In one case they are not: to remove a foreign rule whose conditions
// are a part of the backend's, the kernel may remove the backend's rule, which add then adds
// again.
func (r *markRoutes) add(f v1.IPFamily) error {
	for range 2 {
		if err := r.put(f); err != nil {
			return err
		}
		if err := r.clear(f, 1); err != nil {
			return err
		}
		if state, err := r.state(f); err != nil || state == routingComplete {
			return err
		}
	}
	return nil
}

func (r *markRoutes) put(f v1.IPFamily) error {
	route, err := r.route(f)
	if err == nil {
		err = r.handle.RouteReplace(route)
	}
	if err == nil {
		if err = r.handle.RuleAdd(r.rule(f)); errors.Is(err, unix.EEXIST) {
			err = nil
		}
	}
	switch {
	case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("userspace: %w: routing by marks: %w", proxy.ErrUnsupported, err)
	case err != nil:
		return fmt.Errorf("userspace: routing marked packets to this host: %w", err)
	}
	return nil
}

// remove removes rules and routes, if there are any.
func (r *markRoutes) remove(f v1.IPFamily) error { return r.clear(f, 0) }

// clear removes foreign rules and routes, and the backend's own but for keep of each. The kernel
// removes the first rule that has the given conditions, and perhaps further ones: so rules with
// most conditions are removed first, the rest in the kernel's order.
func (r *markRoutes) clear(f v1.IPFamily, keep int) error {
	rules, others, err := r.rules(f)
	if err != nil {
		return err
	}
	for _, x := range append(rules[min(keep, len(rules)):], others...) {
		if err := r.handle.RuleDel(&x); !host.IsGone(err) {
			return fmt.Errorf("userspace: removing a routing rule: %w", err)
		}
	}
	own, foreign, err := r.local(f)
	if err != nil {
		return err
	}
	for _, x := range append(own[min(keep, len(own)):], foreign...) {
		if err := r.handle.RouteDel(&x); !host.IsGone(err) {
			return fmt.Errorf("userspace: removing a route: %w", err)
		}
	}
	return nil
}
