package proxy

import (
	"net/netip"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestRoutes(t *testing.T) {
	never, nonPods, always := forward(PoolLocal, MasqueradeNever), forward(PoolLocal, MasqueradeNonPods), forward(PoolLocal, MasqueradeAlways)
	cluster := forward(PoolCluster, MasqueradeAlways)
	for _, tc := range []struct {
		name            string
		inside, outside TrafficRoute
		want            [3]TrafficRoute
	}{
		{"never", never, never, [3]TrafficRoute{never, never, never}},
		{"all but pods inside", nonPods, cluster, [3]TrafficRoute{never, always, cluster}},
		{"all but pods outside, where no client is a pod", never, nonPods, [3]TrafficRoute{never, never, always}},
		{"always inside", always, never, [3]TrafficRoute{always, always, never}},
		{"neither pool nor masquerade without endpoints", TrafficRoute{Drop, PoolLocal, MasqueradeAlways}, TrafficRoute{Reject, PoolLocal, MasqueradeNonPods},
			[3]TrafficRoute{{Action: Drop}, {Action: Drop}, {Action: Reject}}},
	} {
		f := Frontend{FromInside: tc.inside, FromOutside: tc.outside}
		pod, node, outside := f.Routes()
		if got := [...]TrafficRoute{pod, node, outside}; got != tc.want {
			t.Errorf("%s: got %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

func TestMasquerades(t *testing.T) {
	pod, onNode, client := netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("10.0.0.6")
	node := &Node{Addresses: []netip.Addr{netip.MustParseAddr("fd00::1"), onNode}}
	for _, tc := range []struct {
		name             string
		masquerade       Masquerade
		client, endpoint netip.Addr
		fromNode, want   bool
	}{
		{"never", MasqueradeNever, client, pod, false, false},
		{"never, to itself", MasqueradeNever, pod, pod, false, true},
		{"never, from the node to itself", MasqueradeNever, onNode, onNode, true, true},
		{"always", MasqueradeAlways, client, pod, false, true},
		{"always, to itself", MasqueradeAlways, pod, pod, false, true},
		{"always, to the node", MasqueradeAlways, client, onNode, false, false},
		{"always, with the node's address to the node", MasqueradeAlways, onNode, onNode, false, false},
		{"always, from the node to itself", MasqueradeAlways, onNode, onNode, true, true},
		{"always, from the node", MasqueradeAlways, onNode, pod, true, true},
	} {
		testenv.Same(t, tc.want, forward(PoolCluster, tc.masquerade).Masquerades(node, tc.client, tc.endpoint, tc.fromNode), "%s", tc.name)
	}
}

func TestAllowedClients(t *testing.T) {
	inside, outside := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("192.0.2.1")
	for _, tc := range []struct {
		name            string
		frontend        Frontend
		inside, outside bool
	}{
		{"not restricted", Frontend{}, true, true},
		{"ranges without restriction", Frontend{AllowedSources: prefixes("10.0.0.0/8")}, true, true},
		{"restricted", Frontend{Restricted: true, AllowedSources: prefixes("10.0.0.0/8", "fd00::/8")}, true, false},
		{"closed", Frontend{Restricted: true}, false, false},
	} {
		if in, out := tc.frontend.Allows(inside), tc.frontend.Allows(outside); in != tc.inside || out != tc.outside {
			t.Errorf("%s: allows %s: %t, %s: %t; want %t, %t", tc.name, inside, in, outside, out, tc.inside, tc.outside)
		}
	}
}

func TestAddressesWithNodePorts(t *testing.T) {
	for _, tc := range []struct {
		at   NodePortAddresses
		addr string
		want bool
	}{
		{NodePortAddresses{}, "192.0.2.1", false},
		{NodePortAddresses{All: true}, "192.0.2.1", true},
		{NodePortAddresses{All: true}, "127.0.0.1", false},
		{NodePortAddresses{All: true}, "::1", false},
		{NodePortAddresses{Prefixes: prefixes("192.0.2.0/24")}, "192.0.2.1", true},
		{NodePortAddresses{Prefixes: prefixes("192.0.2.0/24")}, "192.0.3.1", false},
		{NodePortAddresses{Prefixes: prefixes("192.0.2.0/24")}, "2001:db8::1", false},
		{NodePortAddresses{Prefixes: prefixes("0.0.0.0/0")}, "127.0.0.1", false},
	} {
		testenv.Same(t, tc.want, tc.at.Contains(netip.MustParseAddr(tc.addr)), "%+v: contains %s", tc.at, tc.addr)
	}
}

func TestEnumerationsInJSON(t *testing.T) {
	testenv.RoundTrip(t, ClusterIP, NodePort)
	testenv.RoundTrip(t, Pass, Drop)
	testenv.RoundTrip(t, PoolCluster, PoolLocal)
	testenv.RoundTrip(t, MasqueradeNever, MasqueradeAlways)
}
