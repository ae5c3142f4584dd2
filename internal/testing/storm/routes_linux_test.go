package storm

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/vishvananda/netlink"
)

// routing returns the routes and rules of the node, by their text, each with a function that
// removes it.
func (w *world) routing() (map[string]func() error, error) {
	all := map[string]func() error{}
	n := w.node.Netlink()
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := n.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			all[fmt.Sprintf("route %v table %d type %d link %d", r.Dst, r.Table, r.Type, r.LinkIndex)] = func() error { return n.RouteDel(&r) }
		}
		rules, err := n.RuleList(family)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			r.Family = family
			all[fmt.Sprintf("rule of family %d: %v", family, r)] = func() error { return n.RuleDel(&r) }
		}
	}
	return all, nil
}

// tamperRoutes removes a route or a rule of an agent.
func (s *storm) tamperRoutes(r *rand.Rand) error {
	all, err := s.world.routing()
	if err != nil {
		return err
	}
	var own []string
	for text := range all {
		if !s.world.ownRouting[text] {
			own = append(own, text)
		}
	}
	if len(own) == 0 {
		return nil
	}
	slices.Sort(own)
	text := own[r.IntN(len(own))]
	s.note("removing %s", text)
	return all[text]()
}
