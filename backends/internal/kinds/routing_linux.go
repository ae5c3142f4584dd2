package kinds

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/netns"
)

// Routing is what kind Userspace has outside of nf_tables for one address family.
type Routing struct {
	Rules []netlink.Rule
	// Routes are the routes of its table, and its routes in the table of local addresses.
	Routes []netlink.Route
}

// FindRouting lists the routing rules and routes of kind Userspace with a mark, rules in the kernel's order.
func FindRouting(h *netlink.Handle, family int, mark uint32) (r Routing, err error) {
	rule := netlink.NewRule()
	rule.Priority, rule.Table = RulePriority(mark), RoutingTable(mark)
	r.Rules, err = netns.Consistent(func() ([]netlink.Rule, error) {
		return h.RuleListFiltered(family, rule, netlink.RT_FILTER_PRIORITY|netlink.RT_FILTER_TABLE)
	})
	if !isGone(err) {
		return r, fmt.Errorf("listing routing rules: %w", err)
	}
	for table, filter := range map[int]uint64{RoutingTable(mark): 0, unix.RT_TABLE_LOCAL: netlink.RT_FILTER_PROTOCOL} {
		all, err := netns.Consistent(func() ([]netlink.Route, error) {
			return h.RouteListFiltered(family, &netlink.Route{Table: table, Protocol: RouteProtocol}, netlink.RT_FILTER_TABLE|filter)
		})
		if !isGone(err) {
			return r, fmt.Errorf("listing routes: %w", err)
		}
		for i := range all {
			if table == RoutingTable(mark) || all[i].Priority == RoutingTable(mark) {
				r.Routes = append(r.Routes, all[i])
			}
		}
	}
	return r, nil
}

// Remove removes the rules, and then the routes. What no longer exists is no error.
func (r Routing) Remove(h *netlink.Handle) error {
	for i := range r.Rules {
		if err := h.RuleDel(&r.Rules[i]); !isGone(err) {
			return fmt.Errorf("removing a routing rule: %w", err)
		}
	}
	for i := range r.Routes {
		if err := h.RouteDel(&r.Routes[i]); !isGone(err) {
			return fmt.Errorf("removing a route: %w", err)
		}
	}
	return nil
}

// isGone reports whether an error of a routing request says that there is nothing: the object, or the
// address family.
func isGone(err error) bool {
	return err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EAFNOSUPPORT)
}
