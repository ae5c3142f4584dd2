package e2e_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// pair is an address, or a range, of each family.
type pair [2]netip.Prefix

func parsePair(format4, format6 string, args ...any) pair {
	return pair{
		netip.MustParsePrefix(fmt.Sprintf(format4, args...)),
		netip.MustParsePrefix(fmt.Sprintf(format6, args...)),
	}
}

// String returns the text of a [lab.Host].
func (p pair) String() string { return fmt.Sprint(p[0], " ", p[1]) }

// fabric is the router of a network.
const fabric = "fabric"

// network connects the nodes: a router with a link to each of them, and one to a host outside
// of the cluster.
type network struct {
	t       *testing.T
	lab     *lab.Lab
	outside *netns.NS
	cables  int
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{t: t, lab: lab.New(t, lab.Host{Name: fabric})}
	n.outside = n.attach(parsePair("192.0.2.10/32", "2001:db8::10/128"))
	return n
}

// attach makes a host with an address of each family, and links it to the router. Hosts share no link, so
// the router has the same address on all links.
func (n *network) attach(addresses pair) *netns.NS {
	n.t.Helper()
	n.cables++
	return n.lab.Add(lab.Host{
		Name: fmt.Sprintf("host%d", n.cables-1), Uplink: fabric, Addrs: addresses.String(), Gateway: "172.18.255.1/32 fe80::f/64",
	})
}

// addRoute routes addresses in the fabric to a node.
func (n *network) addRoute(to pair, node *node) {
	n.t.Helper()
	for i, p := range to {
		n.must(n.lab.NS(fabric).AddRoute(netns.Route{To: p, Link: node.cable, Via: node.addresses[i].Addr()}))
	}
}

func (n *network) must(errs ...error) {
	n.t.Helper()
	for _, err := range errs {
		testenv.NoError(n.t, err)
	}
}
