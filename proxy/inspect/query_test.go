package inspect

import (
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
		&proxy.Node{}, udp, bare,
		clusterPort("kube-system/dns:dns-tcp", "10.96.0.2:53"), clusterPort("kube-system/dns:metrics", "10.96.0.2:9153"),
		clusterPort("default/web", "10.96.0.3:80"), clusterPort("default/web", "[fd00::3]:80"),
		clusterPort("a/twice", "10.96.0.4:80"), clusterPort("b/twice", "10.96.0.5:80"),
		clusterPort("default/many:p1", "10.96.0.6:1"), clusterPort("default/many:p2", "10.96.0.6:2"), clusterPort("default/many:p3", "10.96.0.6:3"),
		clusterPort("default/many:p4", "10.96.0.6:4"), clusterPort("default/many:p5", "10.96.0.6:5"), clusterPort("default/many:p6", "10.96.0.6:6"),
	)
	for _, c := range []struct {
		text     string
		protocol v1.Protocol
		like     string
		want     string // or a part of the error
	}{
		{"192.0.2.1:80", "", "", "192.0.2.1:80"},
		{"[::ffff:192.0.2.1]:80", "", "", "192.0.2.1:80"},
		{"192.0.2.1", "", "", "has no port"},
		{"fd00::3", "", "", "IPv6 address in brackets"},
		{"[fd00::3]", "", "", "has no port"},
		{"", "", "", "destination is required"},
		{"web", "", "", "10.96.0.3:80"},
		{"web", "", "10.244.1.1", "10.96.0.3:80"},
		{"web", "", "fd01::1", "[fd00::3]:80"},
		{"twice.a", "", "fd01::1", "10.96.0.4:80"},
		{"WEB.default", "", "", "10.96.0.3:80"},
		{"default/web", "", "", "10.96.0.3:80"},
		{"default/web:80", "", "", "10.96.0.3:80"},
		{"default/web:81", "", "", "choose a port and its protocol: TCP  80"},
		{"web.default.svc", "", "", "10.96.0.3:80"},
		{"web.default.svc.cluster.local:80", "", "", "10.96.0.3:80"},
		{"web.default.svc.cluster.local.", "", "", "10.96.0.3:80"},
		{"www.example.com:80", "", "", "not the name of a Service in cluster DNS"},
		{"twice", "", "", "in the namespaces a, b and perhaps more"},
		{"dns.kube-system", "", "", "choose a port"},
		{"dns.kube-system:metrics", "", "", "10.96.0.2:9153"},
		{"dns.kube-system:DNS-TCP", "", "", "10.96.0.2:53"},
		{"dns.kube-system", v1.ProtocolUDP, "", "10.96.0.2:53"},
		{"dns.kube-system:dns", v1.ProtocolUDP, "", "10.96.0.2:53"},
		{"dns.kube-system:dns", v1.ProtocolTCP, "", "choose a port"},
		{"many", "", "", "TCP p5 5, ..."},
		{"bare", "", "", "choose a port"},
		{"nobody", "", "", "neither address:port nor a Service"},
		{"default/", "", "", "name of a Service, not"},
		{"/", "", "", "name of a Service, not"},
		{":80", "", "", "name of a Service, not"},
		{"1:2:3", "", "", "neither address:port nor a Service"},
	} {
		var like netip.Addr
		if c.like != "" {
			like = netip.MustParseAddr(c.like)
		}
		if c.protocol == "" {
			c.protocol = v1.ProtocolTCP
		}
		at, err := destination(s, c.text, c.protocol, like)
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
	q := query{Filter: "a&b", Page: 3, Destination: "web:80"}
	if got, want := q.At(4), "?destination=web%3A80&filter=a%26b&page=4"; got != want {
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
