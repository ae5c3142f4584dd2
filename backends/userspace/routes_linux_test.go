package userspace_test

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

const (
	ruleTable    = 7_690_006
	rulePriority = 766
)

// rules returns the routing rules of the node that lead to the backend's table.
func (n network) rules(t *testing.T) []netlink.Rule {
	t.Helper()
	all, err := n.node.Netlink().RuleListFiltered(unix.AF_INET, &netlink.Rule{Table: ruleTable}, netlink.RT_FILTER_TABLE)
	testenv.NoError(t, err)
	return all
}

// After another program has removed the routing rule, packets to a Service are dropped, those of
// the node itself, too. The next resync repairs the rule.
func TestMissingRoutingRuleLeaksNothing(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	n.serve(t, one)
	b := n.start(t, userspace.Options{})
	apply(t, b, snapshot(one))
	own := network{client: n.node, node: n.node, pod: n.pod}
	n.wantAnswer(t, one)
	own.wantAnswer(t, one)
	for _, r := range n.rules(t) {
		testenv.NoError(t, n.node.Netlink().RuleDel(&r))
	}
	n.wantSilence(t, one)
	own.wantSilence(t, one)
	if !b.Drifted(t.Context()) {
		t.Error("Drifted without the routing rule: got false, want true")
	}
	apply(t, b, snapshot(one))
	n.wantAnswer(t, one)
	own.wantAnswer(t, one)
}

// ownRule returns the routing rule of the backend, with a change.
func ownRule(change func(*netlink.Rule)) *netlink.Rule {
	r, mask := netlink.NewRule(), uint32(0x40)
	r.Family, r.Priority, r.Table, r.Mark, r.Mask = unix.AF_INET, rulePriority, ruleTable, 0x40, &mask
	change(r)
	return r
}

// A repair removes foreign rules with the backend's priority and table. The backend's own rule
// exists all the time.
func TestRoutingRuleStaysDuringRepair(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	b := n.start(t, userspace.Options{})
	apply(t, b, snapshot(one))
	some := &net.IPNet{IP: net.IPv4(10, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)}
	for name, change := range map[string]func(*netlink.Rule){
		"another mark":      func(r *netlink.Rule) { r.Mark = 1 },
		"another mask":      func(r *netlink.Rule) { r.Mask = nil },
		"for a source":      func(r *netlink.Rule) { r.Src = some },
		"for a destination": func(r *netlink.Rule) { r.Dst = some },
		"for an interface":  func(r *netlink.Rule) { r.IifName = "clients" },
		"for an output":     func(r *netlink.Rule) { r.OifName = "clients" },
		"for a protocol":    func(r *netlink.Rule) { r.IPProto = unix.IPPROTO_TCP },
	} {
		t.Run(name, func(t *testing.T) {
			testenv.NoError(t, n.node.Netlink().RuleAdd(ownRule(change)))
			if !b.Drifted(t.Context()) {
				t.Error("Drifted with a foreign rule: got false, want true")
			}
			events := n.watchRules(t)
			apply(t, b, snapshot(one))
			if added, removed := events(); added != 0 || removed != 1 {
				t.Errorf("repair: got %d rules removed and %d added, want 1 and 0", removed, added)
			}
			if got := len(n.rules(t)); got != 1 {
				t.Errorf("rules to the table after a repair: got %d, want 1", got)
			}
			if b.Drifted(t.Context()) {
				t.Error("Drifted after a repair: got true, want false")
			}
			// The rule that is left is the backend's own.
			if err := n.node.Netlink().RuleAdd(ownRule(func(*netlink.Rule) {})); !errors.Is(err, unix.EEXIST) {
				t.Errorf("adding the rule again: got error %v, want %v", err, unix.EEXIST)
			}
		})
	}
}

// The repair and Cleanup also remove a rule with fewer conditions than the backend's own.
func TestRulesWithFewerConditionsAreRemoved(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	b := n.start(t, userspace.Options{})
	for _, end := range []struct {
		do   func() error
		want int
	}{
		{func() error { return b.Apply(t.Context(), proxy.Snapshot{}, snapshot(one)) }, 1},
		{func() error { return b.Cleanup(t.Context()) }, 0},
	} {
		apply(t, b, snapshot(one))
		for _, protocol := range []int{0, unix.IPPROTO_UDP} {
			if err := n.node.Netlink().RuleAdd(ownRule(func(r *netlink.Rule) { r.Mark, r.Mask, r.IPProto = 0, nil, protocol })); err != nil {
				t.Fatal(err)
			}
		}
		testenv.NoError(t, end.do())
		if got := n.rules(t); len(got) != end.want {
			t.Errorf("rules: got %v, want %d", got, end.want)
		}
		if drifted := b.Drifted(t.Context()); drifted != (end.want == 0) {
			t.Errorf("Drifted: got %v, want %v", drifted, !drifted)
		}
	}
}

// Foreign rules with only the backend's priority, or only its table, are kept.
func TestForeignRulesStay(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	others := []*netlink.Rule{
		ownRule(func(r *netlink.Rule) { r.Table = 100 }), ownRule(func(r *netlink.Rule) { r.Priority = 20_000 }),
	}
	for _, r := range others {
		testenv.NoError(t, n.node.Netlink().RuleAdd(r))
	}
	b := n.start(t, userspace.Options{})
	apply(t, b, snapshot(one))
	if b.Drifted(t.Context()) {
		t.Error("Drifted with foreign rules: got true, want false")
	}
	testenv.NoError(t, b.Cleanup(t.Context()))
	for _, r := range others {
		if err := n.node.Netlink().RuleDel(r); err != nil {
			t.Errorf("removing the rule with priority %d to table %d: got error %v, want none", r.Priority, r.Table, err)
		}
	}
}

// A repair removes all foreign routes of the backend's table, which lead marked packets
// elsewhere.
func TestRoutesOfTheTableAreRepaired(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	b := n.start(t, userspace.Options{})
	apply(t, b, snapshot(one))
	clients, err := n.node.Netlink().LinkByName("clients")
	testenv.NoError(t, err)
	some := &net.IPNet{IP: net.IPv4(10, 96, 0, 0).To4(), Mask: net.CIDRMask(16, 32)}
	for name, r := range map[string]*netlink.Route{
		"a local one":                {Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST},
		"one that leads away":        {Gw: net.ParseIP(clientAddr)},
		"a blackhole":                {Type: unix.RTN_BLACKHOLE},
		"a blackhole in its place":   {Type: unix.RTN_BLACKHOLE, Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}},
		"a blackhole behind the one": {Type: unix.RTN_BLACKHOLE, Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, Priority: 9},
	} {
		t.Run(name, func(t *testing.T) {
			r.Family, r.Table = unix.AF_INET, ruleTable
			if r.Dst == nil {
				r.Dst = some
			}
			if r.Type != unix.RTN_BLACKHOLE {
				r.LinkIndex = clients.Attrs().Index
			}
			testenv.NoError(t, n.node.Netlink().RouteReplace(r))
			if !b.Drifted(t.Context()) {
				t.Error("Drifted with a foreign route: got false, want true")
			}
			apply(t, b, snapshot(one))
			if b.Drifted(t.Context()) {
				t.Error("Drifted after a repair: got true, want false")
			}
			n.wantAnswer(t, one)
		})
	}
}

// If another program has removed the rule, the route or both, the backend notices it, and
// Cleanup removes the rest, also rules with other conditions.
func TestCleanupOfPartialRouting(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(*netlink.Handle, *netlink.Rule, *netlink.Route) error{
		"no rule":  func(h *netlink.Handle, rule *netlink.Rule, _ *netlink.Route) error { return h.RuleDel(rule) },
		"no route": func(h *netlink.Handle, _ *netlink.Rule, route *netlink.Route) error { return h.RouteDel(route) },
		"neither": func(h *netlink.Handle, rule *netlink.Rule, route *netlink.Route) error {
			return errors.Join(h.RuleDel(rule), h.RouteDel(route))
		},
		"another rule": func(h *netlink.Handle, rule *netlink.Rule, route *netlink.Route) error {
			return errors.Join(h.RuleDel(rule), h.RouteDel(route), h.RuleAdd(ownRule(func(r *netlink.Rule) { r.Mask = nil })))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			b := n.start(t, userspace.Options{})
			apply(t, b, snapshot(one))
			h, rules, routes := n.node.Netlink(), n.rules(t), n.table(t)
			if len(rules) != 1 || len(routes) != 1 {
				t.Fatalf("got rules %v and routes %v, want one each", rules, routes)
			}
			testenv.NoError(t, damage(h, &rules[0], &routes[0]))
			if !b.Drifted(t.Context()) {
				t.Error("Drifted: got false, want true")
			}
			testenv.NoError(t, b.Cleanup(t.Context()))
			if rules, routes := n.rules(t), n.table(t); len(rules)+len(routes) != 0 {
				t.Errorf("after Cleanup: got rules %v and routes %v, want none", rules, routes)
			}
		})
	}
}

// table lists the routes of the backend's table.
func (n network) table(t *testing.T) []netlink.Route {
	t.Helper()
	all, err := n.node.Netlink().RouteListFiltered(unix.AF_INET, &netlink.Route{Table: ruleTable}, netlink.RT_FILTER_TABLE)
	testenv.NoError(t, err)
	return all
}

// A repair restores the routes to listeners, and removes all others with the backend's protocol
// and metric; foreign routes are kept.
func TestRoutesToListenersAreRepaired(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	b := n.start(t, userspace.Options{Capture: userspace.Redirect})
	apply(t, b, snapshot(one))
	routes := n.listenerRoutes(t)
	if len(routes) != 3 {
		t.Fatalf("got local routes %v, want three", routes)
	}
	h := n.node.Netlink()
	foreign := &net.IPNet{IP: net.IPv4(192, 0, 2, 9).To4(), Mask: net.CIDRMask(32, 32)}
	others := []netlink.Route{routes[0], routes[0]}
	others[0].Priority++
	others[1].Protocol = unix.RTPROT_STATIC
	others[1].Dst = &net.IPNet{IP: net.IPv4(192, 0, 2, 10).To4(), Mask: net.CIDRMask(32, 32)}
	for i := range others {
		testenv.NoError(t, h.RouteAdd(&others[i]))
	}
	for name, damage := range map[string]func() error{
		"one is missing": func() error { return h.RouteDel(&routes[0]) },
		"one added":      func() error { r := routes[0]; r.Dst = foreign; return h.RouteAdd(&r) },
		"one in its place": func() error {
			r := routes[0]
			r.Dst = foreign
			return errors.Join(h.RouteDel(&routes[0]), h.RouteAdd(&r))
		},
		"one of another kind": func() error {
			return h.RouteReplace(&netlink.Route{
				Family: unix.AF_INET, Table: routes[0].Table, Protocol: routes[0].Protocol, Priority: routes[0].Priority, Dst: routes[0].Dst, Type: unix.RTN_BLACKHOLE,
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.NoError(t, damage())
			if !b.Drifted(t.Context()) {
				t.Error("Drifted: got false, want true")
			}
			apply(t, b, snapshot(one))
			if b.Drifted(t.Context()) {
				t.Error("Drifted after the repair: got true, want false")
			}
			if got := n.listenerRoutes(t); len(got) != 3 {
				t.Errorf("local routes after a repair: got %v, want three", got)
			}
			n.wantAnswer(t, one)
		})
	}
	testenv.NoError(t, b.Cleanup(t.Context()))
	if got := n.listenerRoutes(t); len(got) != 0 {
		t.Errorf("local routes after Cleanup: got %v, want none", got)
	}
	for i := range others {
		if err := h.RouteDel(&others[i]); err != nil {
			t.Errorf("removing the foreign route %v: got error %v, want none", others[i], err)
		}
	}
}

// listenerRoutes lists the backend's own routes in the table of local addresses.
func (n network) listenerRoutes(t *testing.T) (all []netlink.Route) {
	t.Helper()
	some, err := n.node.Netlink().RouteListFiltered(unix.AF_INET, ownRoutes(255), ownRoutesMask)
	testenv.NoError(t, err)
	for i := range some {
		if some[i].Priority == ruleTable {
			all = append(all, some[i])
		}
	}
	return all
}

// watchRules subscribes to changes of IPv4 routing rules on the node, and returns a function
// that counts the changes up to now.
func (n network) watchRules(t *testing.T) func() (added, removed int) {
	t.Helper()
	socket, err := subscribeRules(n.node)
	testenv.NoError(t, err)
	t.Cleanup(socket.Close)
	return func() (added, removed int) {
		for buf := make([]byte, 32<<10); ; {
			size, _, err := unix.Recvfrom(socket.GetFd(), buf, unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EAGAIN) {
				return added, removed
			}
			messages, parsing := syscall.ParseNetlinkMessage(buf[:max(size, 0)])
			testenv.NoError(t, errors.Join(err, parsing))
			for _, m := range messages {
				switch m.Header.Type {
				case unix.RTM_NEWRULE:
					added++
				case unix.RTM_DELRULE:
					removed++
				}
			}
		}
	}
}

func subscribeRules(ns *netns.NS) (s *nl.NetlinkSocket, err error) {
	err = ns.Do(func() error {
		s, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_RULE)
		return err
	})
	return s, err
}

const ownRoutesMask = netlink.RT_FILTER_TABLE | netlink.RT_FILTER_PROTOCOL

// ownRoutes returns a filter for the backend's routes in a table.
func ownRoutes(table int) *netlink.Route { return &netlink.Route{Table: table, Protocol: 118} }
