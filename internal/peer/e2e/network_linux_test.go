package e2e_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// pair is an address, or a range, of each family.
type pair [2]netip.Prefix

func parsePair(format4, format6 string, args ...any) pair {
	return pair{
		netip.MustParsePrefix(fmt.Sprintf(format4, args...)),
		netip.MustParsePrefix(fmt.Sprintf(format6, args...)),
	}
}

// everywhere returns the destinations of a default route.
func everywhere() pair { return parsePair("0.0.0.0/0", "::/0") }

// network connects the nodes: a router with a link to each of them, and one to a host outside
// of the cluster.
type network struct {
	t       *testing.T
	fabric  *netns.NS
	outside *netns.NS
	cables  int
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{t: t, fabric: netnstest.NewNS(t)}
	n.must(n.fabric.Forward())
	n.outside = n.attach(parsePair("192.0.2.10/32", "2001:db8::10/128"))
	return n
}

// attach makes a host with an address of each family, and links it to the router.
func (n *network) attach(addresses pair) *netns.NS {
	n.t.Helper()
	host := netnstest.NewNS(n.t)
	n.join(netns.End{NS: n.fabric, Name: fmt.Sprintf("host%d", n.cables)}, host, addresses, parsePair("172.18.255.1/32", "fe80::f/64"))
	n.cables++
	return host
}

// join makes a link between a router and a host, which gets addresses and a default route.
// Hosts share no link, so the router has the same address, the gateway, on all links.
func (n *network) join(router netns.End, host *netns.NS, addresses, gateway pair) {
	n.t.Helper()
	n.must(netns.Link(router, netns.End{NS: host, Name: "eth0"}))
	for i, address := range addresses {
		n.must(
			router.NS.AddAddress(router.Name, gateway[i]),
			host.AddAddress("eth0", address),
			router.NS.AddRoute(netns.Route{To: address, Link: router.Name}),
			host.AddRoute(netns.Route{To: everywhere()[i], Link: "eth0", Via: gateway[i].Addr()}),
		)
	}
}

// addRoute routes addresses in the fabric to a node.
func (n *network) addRoute(to pair, node *node) {
	n.t.Helper()
	for i, p := range to {
		n.must(n.fabric.AddRoute(netns.Route{To: p, Link: node.cable, Via: node.addresses[i].Addr()}))
	}
}

func (n *network) must(errs ...error) {
	n.t.Helper()
	for _, err := range errs {
		testenv.NoError(n.t, err)
	}
}
