package backendtest

import (
	"os/exec"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// lawRepair: an Apply from the zero snapshot repairs the dataplane after another program
// has removed its objects.
func lawRepair(t *testing.T, s *stage) {
	routes, links := s.routes(t), s.links(t)
	s.checkRepair(t, func() {
		s.removeRules(t)
		s.removeObjects(t, links)
		s.removeRoutes(t, routes)
	})
}

// removeRules removes all rules of the node.
func (s *stage) removeRules(t *testing.T) {
	t.Helper()
	if _, err := findNFT(t, s.node()).run("", "flush", "ruleset"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"iptables-legacy", "ip6tables-legacy"} {
		if _, err := exec.LookPath(name); err != nil || s.config.Tables {
			continue
		}
		for _, table := range []string{"nat", "filter", "mangle"} {
			s.runAtNode(t, "", name, "-t", table, "-F")
		}
	}
}

// removeRoutes removes all routes of the node but some.
func (s *stage) removeRoutes(t *testing.T, but []netlink.Route) {
	t.Helper()
	for _, r := range s.routes(t) {
		if slices.ContainsFunc(but, r.Equal) {
			continue
		}
		if err := s.node().Netlink().RouteDel(&r); err != nil {
			t.Fatalf("removing route %v: %v", r, err)
		}
	}
}

// routes returns the routes of the node in all tables.
func (s *stage) routes(t *testing.T) []netlink.Route {
	t.Helper()
	var all []netlink.Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		some, err := s.node().Netlink().RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE)
		testenv.NoError(t, err)
		all = append(all, some...)
	}
	return all
}
