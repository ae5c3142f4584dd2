package userspace_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const (
	ruleTable     = 7_690_006
	rulePriority  = 766
	localTable    = 255
	routeProtocol = 118
)

// routing is what leads packets to the backend: rules to its table, the routes of that, and its routes to listeners.
type routing struct {
	rules            []netlink.Rule
	table, listeners []netlink.Route
}

// routing lists that of IPv4.
func (n network) routing(t *testing.T) routing { t.Helper(); return n.routingOf(t, unix.AF_INET) }

func (n network) routingOf(t *testing.T, family int) (r routing) {
	t.Helper()
	h := n.node().Netlink()
	var errs [3]error
	r.rules, errs[0] = h.RuleListFiltered(family, &netlink.Rule{Table: ruleTable}, netlink.RT_FILTER_TABLE)
	r.table, errs[1] = h.RouteListFiltered(family, &netlink.Route{Table: ruleTable}, netlink.RT_FILTER_TABLE)
	r.listeners, errs[2] = h.RouteListFiltered(family, &netlink.Route{Table: localTable, Protocol: routeProtocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	testenv.NoError(t, errors.Join(errs[:]...))
	r.listeners = slices.DeleteFunc(r.listeners, func(x netlink.Route) bool { return x.Priority != ruleTable })
	return r
}

// wantRouting checks how many rules, routes and routes to listeners there are.
func (n network) wantRouting(t *testing.T, want [3]int) {
	t.Helper()
	r := n.routing(t)
	if got := [3]int{len(r.rules), len(r.table), len(r.listeners)}; got != want {
		t.Errorf("routing: got %d rules, routes of the table and routes to listeners, want %d: %v", got, want, r)
	}
}

// After another program has removed the routing rule, packets to a Service are dropped, those of
// the node itself, too. The next resync repairs the rule.
func TestMissingRoutingRuleLeaksNothing(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	b := n.start(t, userspace.Options{})
	apply(t, b, snapshot(one))
	for _, from := range []string{"client", "node"} {
		n.from(from).wantAnswer(t, one)
	}
	for _, r := range n.routing(t).rules {
		testenv.NoError(t, n.node().Netlink().RuleDel(&r))
	}
	for _, from := range []string{"client", "node"} {
		n.from(from).wantSilence(t, one)
	}
	if !b.Abilities().Drifted(t.Context()) {
		t.Error("Drifted without the routing rule: got false, want true")
	}
	apply(t, b, snapshot(one))
	for _, from := range []string{"client", "node"} {
		n.from(from).wantAnswer(t, one)
	}
}

// ownRule returns the routing rule of the backend, with a change.
func ownRule(change func(*netlink.Rule)) *netlink.Rule {
	r, mask := netlink.NewRule(), uint32(0x40)
	r.Family, r.Priority, r.Table, r.Mark, r.Mask = unix.AF_INET, rulePriority, ruleTable, 0x40, &mask
	change(r)
	return r
}

// fewerConditions changes a rule so that it has fewer conditions than the backend's own.
func fewerConditions(r *netlink.Rule) { r.Mark, r.Mask = 0, nil }

// A repair removes foreign rules with the backend's priority and table. The backend's own rule
// exists all the time.
func TestRoutingRuleStaysDuringRepair(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	b := n.start(t, userspace.Options{})
	apply(t, b, snapshot(one))
	for name, change := range map[string]func(*netlink.Rule){
		"another mark":      func(r *netlink.Rule) { r.Mark = 1 },
		"another mask":      func(r *netlink.Rule) { r.Mask = nil },
		"for a source":      func(r *netlink.Rule) { r.Src = prefix("10.0.0.0/8") },
		"for a destination": func(r *netlink.Rule) { r.Dst = prefix("10.0.0.0/8") },
		"for an interface":  func(r *netlink.Rule) { r.IifName = "clients" },
		"for an output":     func(r *netlink.Rule) { r.OifName = "clients" },
		"for a protocol":    func(r *netlink.Rule) { r.IPProto = unix.IPPROTO_TCP },
	} {
		events := func() (int, int) { return 0, 1 }
		n.wantRepair(t, b, name, func() error {
			err := n.node().Netlink().RuleAdd(ownRule(change))
			events = n.watchRules(t)
			return err
		})
		if added, removed := events(); added != 0 || removed != 1 {
			t.Errorf("%s: repair: got %d rules removed and %d added, want 1 and 0", name, removed, added)
		}
		// The rule that is left is the backend's own.
		if err := n.node().Netlink().RuleAdd(ownRule(func(*netlink.Rule) {})); !errors.Is(err, unix.EEXIST) {
			t.Errorf("%s: adding the rule again: got error %v, want %v", name, err, unix.EEXIST)
		}
	}
}

// wantRepair checks that the backend notices damage of its routing, and that the next Apply repairs it.
func (n network) wantRepair(t *testing.T, b *userspace.Backend, what string, damage func() error) {
	t.Helper()
	before := n.routing(t)
	testenv.NoError(t, damage())
	if !b.Abilities().Drifted(t.Context()) {
		t.Errorf("%s: Drifted: got false, want true", what)
	}
	apply(t, b, snapshot(one))
	if b.Abilities().Drifted(t.Context()) {
		t.Errorf("%s: Drifted after the repair: got true, want false", what)
	}
	n.wantRouting(t, [3]int{len(before.rules), len(before.table), len(before.listeners)})
	n.wantAnswer(t, one)
}

// Foreign rules with only the backend's priority, or only its table, and foreign routes beside those to listeners are
// kept. A repair removes all others, and restores what is missing.
func TestRoutingIsRepaired(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		h := n.node().Netlink()
		rules := []*netlink.Rule{ownRule(func(r *netlink.Rule) { r.Table = 100 }), ownRule(func(r *netlink.Rule) { r.Priority = 20_000 })}
		for _, r := range rules {
			testenv.NoError(t, h.RuleAdd(r))
		}
		b := n.start(t, userspace.Options{Capture: c})
		apply(t, b, snapshot(one))
		at := n.routing(t).listeners[0]
		foreign := []*netlink.Route{changed(at, func(r *netlink.Route) { r.Priority++ }), changed(at, func(r *netlink.Route) {
			r.Protocol, r.Dst = unix.RTPROT_STATIC, prefix("192.0.2.10/32")
		})}
		for _, r := range foreign {
			testenv.NoError(t, h.RouteAdd(r))
		}
		if b.Abilities().Drifted(t.Context()) {
			t.Error("Drifted with foreign rules and routes: got true, want false")
		}
		for what, damage := range n.routeDamage(t, c, at) {
			n.wantRepair(t, b, what, damage)
		}
		testenv.NoError(t, b.Cleanup(t.Context()))
		for _, r := range rules {
			if err := h.RuleDel(r); err != nil {
				t.Errorf("removing the foreign rule %v: got error %v, want none", r, err)
			}
		}
		for _, r := range foreign {
			if err := h.RouteDel(r); err != nil {
				t.Errorf("removing the foreign route %v: got error %v, want none", r, err)
			}
		}
		n.wantRouting(t, [3]int{})
	})
}

// routeDamage returns what another program may do to the routes to listeners, of which at is one, and with TPROXY to
// the routes of the table.
func (n network) routeDamage(t *testing.T, c userspace.Capture, at netlink.Route) map[string]func() error {
	t.Helper()
	h := n.node().Netlink()
	other := changed(at, func(r *netlink.Route) { r.Dst = prefix("192.0.2.9/32") })
	all := map[string]func() error{
		"a listener is missing": func() error { return h.RouteDel(&at) },
		"one more listener":     func() error { return h.RouteAdd(other) },
		"another listener":      func() error { return errors.Join(h.RouteDel(&at), h.RouteAdd(other)) },
		"a listener blackholed": func() error {
			return h.RouteReplace(changed(at, func(r *netlink.Route) { r.Type, r.LinkIndex, r.Scope = unix.RTN_BLACKHOLE, 0, 0 }))
		},
	}
	if c == userspace.Redirect {
		return all
	}
	link, err := h.LinkByName("clients")
	testenv.NoError(t, err)
	index := link.Attrs().Index
	for what, r := range map[string]*netlink.Route{
		"a local route":           {Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, LinkIndex: index, Dst: prefix("10.96.0.0/16")},
		"a route that leads away": {Gw: net.ParseIP(clientAddr), LinkIndex: index, Dst: prefix("10.96.0.0/16")},
		"a blackhole":             {Type: unix.RTN_BLACKHOLE, Dst: prefix("10.96.0.0/16")},
		"a blackhole in place":    {Type: unix.RTN_BLACKHOLE, Dst: prefix("0.0.0.0/0")},
		"a blackhole behind":      {Type: unix.RTN_BLACKHOLE, Dst: prefix("0.0.0.0/0"), Priority: 9},
	} {
		r.Family, r.Table = unix.AF_INET, ruleTable
		all[what] = func() error { return h.RouteReplace(r) }
	}
	all["rules with fewer conditions"] = func() error {
		return errors.Join(h.RuleAdd(ownRule(fewerConditions)), h.RuleAdd(ownRule(func(r *netlink.Rule) { fewerConditions(r); r.IPProto = unix.IPPROTO_UDP })))
	}
	return all
}

func changed(r netlink.Route, change func(*netlink.Route)) *netlink.Route {
	change(&r)
	return &r
}

func prefix(text string) *net.IPNet {
	_, p, err := net.ParseCIDR(text)
	if err != nil {
		panic(err)
	}
	return p
}

// If another program has removed the rule, the route or both, the backend notices it, and
// Cleanup removes the rest, also rules with other conditions.
func TestCleanupOfPartialRouting(t *testing.T) {
	t.Parallel()
	type damage = func(*netlink.Handle, routing) error
	noRule := func(h *netlink.Handle, r routing) error { return h.RuleDel(&r.rules[0]) }
	noRoute := func(h *netlink.Handle, r routing) error { return h.RouteDel(&r.table[0]) }
	otherRule := func(change func(*netlink.Rule)) damage {
		return func(h *netlink.Handle, _ routing) error { return h.RuleAdd(ownRule(change)) }
	}
	for name, all := range map[string][]damage{
		"no rule": {noRule}, "no route": {noRoute}, "neither": {noRule, noRoute},
		"another rule":                {noRule, noRoute, otherRule(func(r *netlink.Rule) { r.Mask = nil })},
		"rules with fewer conditions": {otherRule(fewerConditions), otherRule(func(r *netlink.Rule) { fewerConditions(r); r.IPProto = unix.IPPROTO_UDP })},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			b := n.start(t, userspace.Options{})
			apply(t, b, snapshot(one))
			r := n.routing(t)
			for _, do := range all {
				testenv.NoError(t, do(n.node().Netlink(), r))
			}
			if !b.Abilities().Drifted(t.Context()) {
				t.Error("Drifted: got false, want true")
			}
			testenv.NoError(t, b.Cleanup(t.Context()))
			n.wantRouting(t, [3]int{})
		})
	}
}

// watchRules subscribes to changes of IPv4 routing rules on the node, and returns a function
// that counts the changes up to now.
func (n network) watchRules(t *testing.T) func() (added, removed int) {
	t.Helper()
	socket, err := subscribeRules(n.node())
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

// WaitDrift returns soon after another program has changed the routing, or the interface that it
// leads to, and not after changes by the backend or of other rules and routes.
func TestWaitDriftOfRouting(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		t.Parallel()
		n := newNetwork(t)
		b, s := n.start(t, userspace.Options{Capture: c}), bothProtocols()
		h := n.node().Netlink()
		lo, err := h.LinkByName("lo")
		testenv.NoError(t, err)
		for name, change := range map[string]func() error{
			"routes": func() error { return n.deleteRouting(t, routing{listeners: n.routing(t).listeners}) },
			"rules":  func() error { return n.deleteRouting(t, n.routing(t)) }, // redirect has routes alone
			"lo":     func() error { return errors.Join(h.LinkSetDown(lo), h.LinkSetUp(lo)) },
			"IPv6 on and off": func() error {
				return errors.Join(n.node().Sysctl("net/ipv6/conf/lo/disable_ipv6", "1"), n.node().Sysctl("net/ipv6/conf/lo/disable_ipv6", "0"))
			},
		} {
			apply(t, b, s)
			waited := make(chan error, 1)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			go func() { waited <- b.Abilities().WaitDrift(ctx) }()
			// None of these is drift.
			apply(t, b, s)
			testenv.NoError(t, b.Apply(t.Context(), s, services()))
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

// deleteRouting deletes rules, or routes to listeners if there are no rules.
func (n network) deleteRouting(t *testing.T, r routing) (err error) {
	t.Helper()
	h := n.node().Netlink()
	for i := range r.rules {
		err = errors.Join(err, h.RuleDel(&r.rules[i]))
	}
	for i := range r.listeners {
		if len(r.rules) == 0 {
			err = errors.Join(err, h.RouteDel(&r.listeners[i]))
		}
	}
	return err
}

// addForeign adds a rule and a route of another program, and removes them.
func addForeign(h *netlink.Handle, lo netlink.Link) error {
	rule := netlink.NewRule()
	rule.Priority, rule.Table, rule.Family = 5_000, 77, netlink.FAMILY_V4
	route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: prefix("198.51.100.0/24"), Table: 77}
	return errors.Join(h.RuleAdd(rule), h.RouteAdd(route), h.RouteDel(route), h.RuleDel(rule))
}
