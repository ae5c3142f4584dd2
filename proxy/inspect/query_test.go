package inspect

import (
	"cmp"
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// clusterPort is a service port with a ClusterIP, whose routes pass packets.
func clusterPort(name, at string) *proxy.ServicePort {
	return snapshots.With(snapshots.Port(name, at), snapshots.Routes(proxy.TrafficRoute{}, proxy.TrafficRoute{}))
}

// TestDestination checks which address the texts that people write stand for.
func TestDestination(t *testing.T) {
	udp := clusterPort("kube-system/dns:dns", "10.96.0.2:53")
	udp.Name.Protocol = v1.ProtocolUDP
	bare := clusterPort("default/bare", "10.96.0.9:1")
	bare.Frontends = nil
	s := proxy.NewSnapshot(
		&proxy.Node{}, udp, bare, clusterPort("kube-system/dns:dns-tcp", "10.96.0.2:53"),
		clusterPort("default/web:http", "10.96.0.3:80"), clusterPort("default/web:http", "[fd00::3]:80"), clusterPort("default/four", "10.96.0.4:80"),
	)
	for _, c := range []struct {
		text     string
		protocol v1.Protocol
		like     string
		want     string // or a part of the error
	}{
		{"192.0.2.1:80", "", "", "192.0.2.1:80"},
		{"[::ffff:192.0.2.1]:80", "", "", "192.0.2.1:80"},
		{"192.0.2.1", "", "", "must be address:port"},
		{"fd00::3", "", "", "must be address:port"},
		{"", "", "", "must be address:port"},
		{"web:80", "", "", "must be address:port"},
		{"default/web:80", "", "", "10.96.0.3:80"},
		{"default/web:http", "", "10.244.1.1", "10.96.0.3:80"},
		{"default/web:http", "", "fd01::1", "[fd00::3]:80"},
		{"default/four:80", "", "fd01::1", "10.96.0.4:80"},
		{"default/web:81", "", "", "serves no such port of TCP"},
		{"default/web", "", "", "serves no such port"},
		{"kube-system/dns:53", "", "", "10.96.0.2:53"},
		{"kube-system/dns:dns", v1.ProtocolUDP, "", "10.96.0.2:53"},
		{"kube-system/dns:dns", v1.ProtocolTCP, "", "no such port"},
		{"default/bare:1", "", "", "no such port"},
		{"/", "", "", "no such port"},
	} {
		var like netip.Addr
		if c.like != "" {
			like = netip.MustParseAddr(c.like)
		}
		at, err := destination(s, c.text, cmp.Or(c.protocol, v1.ProtocolTCP), like)
		got := at.String()
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%q, %s, client %s: got %s, want %s", c.text, c.protocol, c.like, got, c.want)
		}
	}
}

// TestPageKeepsTheQuery checks that links to other pages of the list keep filter and packet.
func TestPageKeepsTheQuery(t *testing.T) {
	q := query{Filter: "a&b", Page: 3, Destination: "a/web:80"}
	if got, want := q.At(4), "?destination=a%2Fweb%3A80&filter=a%26b&page=4"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The page knows each loopback address as one of the node, also one that no interface lists, and
// answers for a process of the node, which sends from the usual one.
func TestLoopbackAddresses(t *testing.T) {
	node := &proxy.Node{Addresses: snapshots.Addrs("192.0.2.1"), NodePorts: proxy.NodePortAddresses{Loopback: snapshots.Prefixes("127.0.0.0/8", "127.0.0.7/32", "::1/128")}}
	route := snapshots.Routes(proxy.TrafficRoute{Action: proxy.Forward}, proxy.TrafficRoute{Action: proxy.Forward})
	s := snapshots.EachWith(proxy.NewSnapshot(node, snapshots.Port("web", ":30080"), snapshots.Port("web", "[::]:30080")), route)
	for to, want := range map[string]struct {
		from   string
		action proxy.Action
	}{
		"127.0.0.1:30080": {"127.0.0.1:40000", proxy.Forward},
		"127.0.0.7:30080": {"127.0.0.1:40000", proxy.Forward},
		"127.0.0.8:30080": {"127.0.0.1:40000", proxy.Pass},
		"[::1]:30080":     {"[::1]:40000", proxy.Forward},
	} {
		q := newQuery(url.Values{"destination": {to}})
		got := q.answer(s)
		if got.Error != "" || got.Verdict.Action != want.action || got.Packet.Source.String() != want.from {
			t.Errorf("%s: got %+v of %+v, error %q, want %v of %s", to, got.Verdict, got.Packet, got.Error, want.action, want.from)
		}
	}
}

// Limits of another Runner are beside those of the page's own, and the last ones count.
func TestSetLimits(t *testing.T) {
	limit := func(name string) *proxy.Problem {
		return &proxy.Problem{Kind: "Service", NamespacedName: types.NamespacedName{Namespace: "ns", Name: name}, Field: "spec", Err: errors.New("limited")}
	}
	p := New("")
	p.history.synced(proxy.Sync{Applied: proxy.NewSnapshot(&proxy.Node{}), Limits: []*proxy.Problem{limit("own")}})
	for _, names := range [][]string{{"a", "b"}, {"b"}, nil} {
		var limits []*proxy.Problem
		want := []string{limit("own").Error()}
		for _, n := range names {
			limits, want = append(limits, limit(n)), append(want, limit(n).Error())
		}
		p.SetLimits(limits)
		if got := p.view(nil).Limits; !slices.Equal(got, want) {
			t.Errorf("%v: got limits %q, want %q", names, got, want)
		}
	}
}
