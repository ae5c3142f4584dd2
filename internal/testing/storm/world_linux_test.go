package storm

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// world is a crowded cluster: a Service can have any number of endpoints.
type world struct {
	lab  *lab.Lab
	node *netns.NS
	// ownRouting are the routes and rules of the node before the first agent started.
	ownRouting map[string]bool
	ipvs       ipvsWorld
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{lab: lab.New(t)}
	for _, h := range cluster.Hosts() {
		if h.Name != cluster.Local2 && h.Name != cluster.Remote2 {
			w.lab.Add(cluster.Plan(h, true))
		}
	}
	for _, s := range cluster.Servers() {
		for _, port := range s.Ports {
			if s.At != cluster.Local2 && s.At != cluster.Remote2 {
				w.lab.Serve(string(s.At), s.Name, port)
			}
		}
	}
	w.node = w.lab.NS(string(cluster.Node))
	for _, a := range cluster.SecondaryAddrs() {
		testenv.NoError(t, w.node.AddSecondary(cluster.Entry(cluster.Gateway), cluster.Single(a)))
	}
	routing, err := w.routing()
	testenv.NoError(t, err)
	w.ownRouting = map[string]bool{}
	for text := range routing {
		w.ownRouting[text] = true
	}
	return w
}

// oracleOf returns the oracle for a dataplane under faults, in which a connection that is not answered is
// refused in any way.
func oracleOf(isIPVS bool) *cluster.Oracle {
	own := nodeAddrs()
	isNode := func(a netip.Addr) bool { return slices.Contains(own, a) }
	return &cluster.Oracle{
		IsNode: isNode,
		Towards: func(to netip.Addr) netip.Addr {
			if isNode(to) {
				return to
			}
			return own[slices.IndexFunc(own, func(a netip.Addr) bool { return a.Is4() == to.Is4() })]
		},
		// A process of the node that connects to an address of the device of the backend ipvs has
		// this address, which must not leave the node.
		Hides:      func(p proxy.Packet, _ netip.Addr) bool { return isIPVS && p.FromNode && !p.ToNode },
		AnyRefusal: true, OtherPorts: true,
	}
}

// flushConntrack removes all conntrack entries of the node: an entry that was made while
// rules were missing must not decide about later connections from the same port. Current
// connections break.
func (w *world) flushConntrack() error {
	const connections = 1
	return w.node.Netlink().ConntrackTableFlush(connections)
}

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
