package userspace_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// WaitDrift returns soon after another program has changed the routing, or the interface that it
// leads to, and not after the backend's own changes or those of other rules and routes.
func TestWaitDriftOfRouting(t *testing.T) {
	t.Parallel()
	for _, capture := range []userspace.Capture{userspace.TPROXY, userspace.Redirect} {
		t.Run(capture.String(), func(t *testing.T) {
			t.Parallel()
			n := newBridged(t, false)
			b, s := n.start(t, userspace.Options{Capture: capture}), bridgedServices()
			h := n.node.Netlink()
			lo, err := h.LinkByName("lo")
			testenv.NoError(t, err)
			for name, change := range map[string]func() error{
				"routes": func() error { return deleteRoutes(h) },
				"rules":  func() error { return deleteRules(h, capture) },
				"lo":     func() error { return errors.Join(h.LinkSetDown(lo), h.LinkSetUp(lo)) },
				"IPv6 on and off": func() error {
					return errors.Join(n.node.Sysctl("net/ipv6/conf/lo/disable_ipv6", "1"), n.node.Sysctl("net/ipv6/conf/lo/disable_ipv6", "0"))
				},
			} {
				apply(t, b, s)
				waited := make(chan error, 1)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				go func() { waited <- b.WaitDrift(ctx) }()
				// None of these is drift.
				apply(t, b, s)
				testenv.NoError(t, b.Apply(t.Context(), s, proxy.NewSnapshot(s.Node())))
				apply(t, b, s)
				testenv.NoError(t, addForeign(h, lo))
				select {
				case err := <-waited:
					t.Errorf("%s: WaitDrift before the change: got %v, want it to wait", name, err)
				case <-time.After(100 * time.Millisecond):
				}
				testenv.NoError(t, change())
				if err := <-waited; err != nil {
					t.Errorf("%s: WaitDrift: got error %v, want none", name, err)
				}
				cancel()
			}
		})
	}
}

// deleteRules deletes the rules of TPROXY; redirect has none, and its routes are deleted.
func deleteRules(h *netlink.Handle, c userspace.Capture) (err error) {
	if c == userspace.Redirect {
		return deleteRoutes(h)
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		rules, lerr := h.RuleList(family)
		err = errors.Join(err, lerr)
		for i := range rules {
			if rules[i].Priority != 0 && rules[i].Priority < 1000 {
				err = errors.Join(err, h.RuleDel(&rules[i]))
			}
		}
	}
	return err
}

// deleteRoutes deletes the routes of the backend in the local table.
func deleteRoutes(h *netlink.Handle) error {
	const local, protocol = 255, 118
	routes, err := h.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: local, Protocol: protocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	if err == nil && len(routes) == 0 {
		err = errors.New("no routes to delete")
	}
	for i := range routes {
		err = errors.Join(err, h.RouteDel(&routes[i]))
	}
	return err
}

// addForeign adds a rule and a route of another program, and removes them.
func addForeign(h *netlink.Handle, lo netlink.Link) error {
	rule := netlink.NewRule()
	rule.Priority, rule.Table, rule.Family = 5_000, 77, netlink.FAMILY_V4
	_, dst, err := net.ParseCIDR("198.51.100.0/24")
	route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Table: 77}
	return errors.Join(err, h.RuleAdd(rule), h.RouteAdd(route), h.RouteDel(route), h.RuleDel(rule))
}
