package userspace_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/netns"
)

const (
	ruleTable    = 7_690_014
	rulePriority = 774
)

// rules gives the routing rules of the node that lead to the backend's table.
func (n network) rules(t *testing.T) []netlink.Rule {
	t.Helper()
	all, err := n.node.Netlink().RuleListFiltered(unix.AF_INET, &netlink.Rule{Table: ruleTable}, netlink.RT_FILTER_TABLE)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// What the node itself sends to a Service goes nowhere while somebody has taken
// away the routing rule, which the next look finds out and repairs.
func TestMissingRoutingRuleLeaksNothing(t *testing.T) {
	n := newNetwork(t)
	n.serve(t, podServer)
	n.serve(t, one)
	b := n.start(t, userspace.Options{})
	apply(t, b, snapshot(one))
	own := network{client: n.node, node: n.node, pod: n.pod}
	n.wantAnswer(t, one)
	own.wantAnswer(t, one)
	for _, r := range n.rules(t) {
		if err := n.node.Netlink().RuleDel(&r); err != nil {
			t.Fatal(err)
		}
	}
	n.wantSilence(t, one)
	own.wantSilence(t, one)
	if !b.Drifted(t.Context()) {
		t.Error("the routing rule is gone, and that is no reason to look")
	}
	apply(t, b, snapshot(one))
	n.wantAnswer(t, one)
	own.wantAnswer(t, one)
}

// Rules at the backend's place that are not its own go away; its own one stays
// there all the time.
func TestRoutingRuleStaysDuringRepair(t *testing.T) {
	n := newNetwork(t)
	b := n.start(t, userspace.Options{})
	apply(t, b, snapshot(one))
	odd := netlink.NewRule()
	odd.Family, odd.Priority, odd.Table, odd.Mark = unix.AF_INET, rulePriority, ruleTable, 1
	if err := n.node.Netlink().RuleAdd(odd); err != nil {
		t.Fatal(err)
	}
	events := n.watchRules(t)
	apply(t, b, snapshot(one))
	if got := len(n.rules(t)); got != 1 {
		t.Errorf("after a repair, %d rules lead to the table, want 1", got)
	}
	if added, removed := events(); added != 0 || removed != 1 {
		t.Errorf("to take one rule away, %d were removed and %d added, want 1 and 0", removed, added)
	}
	if b.Drifted(t.Context()) {
		t.Error("after a repair, something is still not as it should be")
	}
}

// watchRules begins to listen to changes of IPv4 routing rules on the node, and
// gives a function that counts those up to now.
func (n network) watchRules(t *testing.T) func() (added, removed int) {
	t.Helper()
	socket, err := subscribeRules(n.node)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(socket.Close)
	return func() (added, removed int) {
		for buf := make([]byte, 32<<10); ; {
			size, _, err := unix.Recvfrom(socket.GetFd(), buf, unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EAGAIN) {
				return added, removed
			}
			messages, parsing := syscall.ParseNetlinkMessage(buf[:max(size, 0)])
			if err := errors.Join(err, parsing); err != nil {
				t.Fatal(err)
			}
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

// ownRoutes is a filter for the backend's routes in a table.
func ownRoutes(table int) *netlink.Route { return &netlink.Route{Table: table, Protocol: 118} }
