package storm

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// world is a node and four other namespaces, each with a link to the node:
//
//	pods     endpoints on the node
//	remote   endpoints on another node; it is also the node's default route, has all
//	         addresses of Services, and answers packets that the node did not translate
//	clients  pods that are clients
//	outside  clients outside of the cluster
//
// Each address of the prefixes of a namespace is served there, so that a Service can have
// any number of endpoints.
type world struct {
	lab  *lab.Lab
	node *netns.NS
	// ownRouting are the routes and rules of the node before the first agent started.
	ownRouting map[string]bool
	ipvs       ipvsWorld
}

// The hosts. The node's interfaces have the names of the others, the leaves.
const (
	atNode    = "node"
	atPods    = "pods"
	atRemote  = "remote"
	atClients = "clients"
	atOutside = "outside"
)

// servicePort and endpointPort are where the servers listen.
const (
	servicePort  = 80
	endpointPort = 8080
)

// prefixes returns the prefixes of a leaf, alternating between IPv4 and IPv6.
func prefixes(leaf string) []netip.Prefix {
	return map[string][]netip.Prefix{
		atPods:    snapshots.Prefixes("10.1.0.0/16", "fd00:10:1::/112"),
		atRemote:  snapshots.Prefixes("10.3.0.0/16", "fd00:10:3::/112", "10.96.0.0/16", "fd00:96::/112", "203.0.113.0/24", "2001:db8:e::/112"),
		atClients: snapshots.Prefixes("10.2.0.0/16", "fd00:10:2::/112"),
		atOutside: snapshots.Prefixes("192.0.2.0/24", "2001:db8:1::/112", "198.51.100.0/24", "2001:db8:2::/112"),
	}[leaf]
}

// nodeAddrs returns the addresses of the node: the primary one of each family, and
// secondary ones, which are not always in the Node object.
func nodeAddrs() []netip.Addr {
	return []netip.Addr{
		netip.MustParseAddr("172.18.0.2"), netip.MustParseAddr("fd00:18::2"),
		netip.MustParseAddr("172.18.1.2"), netip.MustParseAddr("fd00:18:1::2"),
	}
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{lab: lab.New(t, lab.Host{Name: atNode})}
	w.node = w.lab.NS(atNode)
	for _, leaf := range []string{atPods, atRemote, atClients, atOutside} {
		h := lab.Host{Name: leaf, Uplink: atNode}
		for i, p := range prefixes(leaf) {
			h.Owned += " " + p.String()
			if i < 2 {
				h.Addrs += " " + single(p.Addr().Next()).String()
			}
		}
		switch leaf {
		case atPods:
			h.Serve = []uint16{endpointPort}
		case atRemote:
			h.Serve, h.Behind = []uint16{endpointPort, servicePort}, "0.0.0.0/0 ::/0"
			h.Gateway = fmt.Sprint(single(nodeAddrs()[0]), " ", single(nodeAddrs()[1]))
		}
		w.lab.Add(h)
	}
	for _, a := range nodeAddrs()[2:] {
		testenv.NoError(t, w.node.AddSecondary(atRemote, single(a)))
	}
	routing, err := w.routing()
	testenv.NoError(t, err)
	w.ownRouting = map[string]bool{}
	for text := range routing {
		w.ownRouting[text] = true
	}
	return w
}

// flushConntrack removes all conntrack entries of the node: an entry that was made while
// rules were missing must not decide about later connections from the same port. Current
// connections break.
func (w *world) flushConntrack() error {
	const connections = 1
	return w.node.Netlink().ConntrackTableFlush(connections)
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// nth returns the address n of a prefix.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Addr().AsSlice()
	b[len(b)-1] += byte(n)
	b[len(b)-2] += byte(n >> 8)
	a, _ := netip.AddrFromSlice(b)
	return a
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
