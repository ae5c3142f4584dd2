package storm

import (
	"errors"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
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
	node   *netns.NS
	leaves map[string]*netns.NS
	// ownRouting are the routes and rules of the node before the first agent started.
	ownRouting map[string]bool
	ipvs       ipvsWorld
}

// The leaves, which are also the names of the node's interfaces to them.
const (
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
		atPods:    parsePrefixes("10.1.0.0/16", "fd00:10:1::/112"),
		atRemote:  parsePrefixes("10.3.0.0/16", "fd00:10:3::/112", "10.96.0.0/16", "fd00:96::/112", "203.0.113.0/24", "2001:db8:e::/112"),
		atClients: parsePrefixes("10.2.0.0/16", "fd00:10:2::/112"),
		atOutside: parsePrefixes("192.0.2.0/24", "2001:db8:1::/112", "198.51.100.0/24", "2001:db8:2::/112"),
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
	w := &world{node: netnstest.NewNS(t), leaves: map[string]*netns.NS{}}
	testenv.NoError(t, w.node.Forward())
	for _, leaf := range []string{atPods, atRemote, atClients, atOutside} {
		w.leaves[leaf] = netnstest.NewNS(t)
		if err := w.attach(leaf); err != nil {
			t.Fatalf("%s: %v", leaf, err)
		}
	}
	primary := nodeAddrs()
	err := errors.Join(
		w.node.AddAddress(atRemote, single(primary[0])), w.node.AddAddress(atRemote, single(primary[1])),
		w.node.AddSecondary(atRemote, single(primary[2])), w.node.AddSecondary(atRemote, single(primary[3])),
		w.node.AddRoute(netns.Route{To: everything(v1.IPv4Protocol), Link: atRemote, Via: prefixes(atRemote)[0].Addr().Next()}),
		w.node.AddRoute(netns.Route{To: everything(v1.IPv6Protocol), Link: atRemote, Via: prefixes(atRemote)[1].Addr().Next()}),
	)
	testenv.NoError(t, err)
	for _, leaf := range []string{atPods, atRemote} {
		serve(t, w.leaves[leaf], endpointPort)
	}
	serve(t, w.leaves[atRemote], servicePort)
	routing, err := w.routing()
	testenv.NoError(t, err)
	w.ownRouting = map[string]bool{}
	for text := range routing {
		w.ownRouting[text] = true
	}
	return w
}

// attach links a leaf to the node. It adds the neighbour entries, so that no packet waits
// for ARP or neighbour discovery.
func (w *world) attach(leaf string) error {
	ns := w.leaves[leaf]
	if err := netns.Link(netns.End{NS: w.node, Name: leaf}, netns.End{NS: ns, Name: "eth0"}); err != nil {
		return err
	}
	below, errBelow := ns.HardwareAddr("eth0")
	above, errAbove := w.node.HardwareAddr(leaf)
	// Servers answer from addresses that IPv6 does not count as its own.
	errs := []error{errBelow, errAbove, ns.Sysctl("net/ipv6/ip_nonlocal_bind", "1")}
	for i, p := range prefixes(leaf) {
		own := p.Addr().Next()
		family := ipaddr.FamilyOf(own)
		if i < 2 {
			errs = append(errs,
				ns.AddAddress("eth0", single(own)),
				ns.AddNeighbor("eth0", hop(family), above),
				ns.AddRoute(netns.Route{To: everything(family), Link: "eth0", Via: hop(family)}),
				w.node.AddNeighbor(leaf, own, below))
		}
		errs = append(errs, ns.AddRoute(netns.Route{To: p, Link: "lo", Local: true}))
		if leaf != atRemote || i < 2 {
			errs = append(errs, w.node.AddRoute(netns.Route{To: p, Link: leaf, Via: prefixes(leaf)[i%2].Addr().Next()}))
		}
	}
	return errors.Join(errs...)
}

// flushConntrack removes all conntrack entries of the node: an entry that was made while
// rules were missing must not decide about later connections from the same port. Current
// connections break.
func (w *world) flushConntrack() error {
	const connections = 1
	return w.node.Netlink().ConntrackTableFlush(connections)
}

// hop returns the address of the node on a link. No interface has it; a neighbour entry is
// enough.
func hop(family v1.IPFamily) netip.Addr {
	if family == v1.IPv4Protocol {
		return netip.MustParseAddr("169.254.1.1")
	}
	return netip.MustParseAddr("fe80::1")
}

func everything(family v1.IPFamily) netip.Prefix {
	if family == v1.IPv4Protocol {
		return netip.MustParsePrefix("0.0.0.0/0")
	}
	return netip.MustParsePrefix("::/0")
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func parsePrefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// nth returns the address n of a prefix.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Addr().AsSlice()
	b[len(b)-1] += byte(n)
	b[len(b)-2] += byte(n >> 8)
	a, _ := netip.AddrFromSlice(b)
	return a
}
