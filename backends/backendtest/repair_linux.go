package backendtest

import (
	"os/exec"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// lawRepair: what somebody else has taken away behind the backend's back is there
// again after an Apply from the zero snapshot.
func lawRepair(t *testing.T, s *stage) {
	routes := s.routes(t)
	h := s.newHistory(testenv.Random(t), 10)
	for range 5 {
		s.apply(t, h.next(t))
	}
	want := s.dump(t)
	s.devastate(t, routes)
	if s.dump(t) == want {
		t.Fatal("nothing was taken away, which shows nothing")
	}
	s.applied = proxy.Snapshot{}
	s.apply(t, h.last)
	if diff := cmp.Diff(want, s.dump(t)); diff != "" {
		t.Errorf("the dataplane (-before +after it was taken away):\n%s", diff)
	}
}

// devastate removes all rules of the node, and all routes but some.
func (s *stage) devastate(t *testing.T, but []netlink.Route) {
	t.Helper()
	if _, err := findNFT(t, s.node()).run(t.Context(), "", "flush", "ruleset"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"iptables-legacy", "ip6tables-legacy"} {
		if _, err := exec.LookPath(name); err != nil || s.config.Tables {
			continue
		}
		for _, table := range []string{"nat", "filter"} {
			s.runAtNode(t, "", name, "-t", table, "-F")
		}
	}
	for _, r := range s.routes(t) {
		if slices.ContainsFunc(but, r.Equal) {
			continue
		}
		if err := s.node().Netlink().RouteDel(&r); err != nil {
			t.Fatalf("removing route %v: %v", r, err)
		}
	}
}

// routes gives the routes of the node in all tables.
func (s *stage) routes(t *testing.T) []netlink.Route {
	t.Helper()
	var all []netlink.Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		some, err := s.node().Netlink().RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, some...)
	}
	return all
}
