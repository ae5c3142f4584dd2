package backendtest

import (
	"net/netip"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// drawn returns a testbed without network namespaces.
func drawn(w world) *testbed {
	b := &testbed{world: w}
	for _, s := range cluster.Hosts() {
		b.hosts = append(b.hosts, &host{Host: s})
	}
	return b
}

// On a bridge some connections need a capability: packets of a dataplane that lacks it are
// lost.
func TestOutcomesOnBridges(t *testing.T) {
	names := map[cluster.Name]string{cluster.Local: "10.0.0.5", cluster.Local2: "10.0.0.7", cluster.Remote: "10.1.0.5", cluster.Node: "172.18.0.2"}
	for _, test := range []struct {
		world  World
		lacks  Capability
		from   cluster.Name
		to     cluster.Name
		masked bool
		want   string
	}{
		{"bridge-nf-1", UnfilteredBridges, cluster.Local, cluster.Local2, false, "local2 sees 10.0.0.5"},
		{"bridge-nf-1", HairpinOff, cluster.Local, cluster.Local, true, "local sees 10.0.0.1"},
		{"bridge-nf-1", BridgedAddresses, cluster.Local, cluster.Local2, false, "local2 sees 10.0.0.1"},
		{"bridge-nf-1", BridgedAddresses, cluster.Local, cluster.Remote, false, "remote sees 10.0.0.5"},
		{"bridge-nf-1-hairpin-off", HairpinOff, cluster.Local, cluster.Local, true, "silence"},
		{"bridge-nf-1-hairpin-off", UnfilteredBridges, cluster.Local, cluster.Local, true, "local sees 10.0.0.1"},
		{"bridge-nf-1-hairpin-off", HairpinOff, cluster.Local2, cluster.Local, false, "local sees 10.0.0.7"},
		{"bridge-nf-0", UnfilteredBridges, cluster.Local, cluster.Local2, false, "silence"},
		{"bridge-nf-0", UnfilteredBridges, cluster.Local, cluster.Local2, true, "local2 sees 10.0.0.1"},
		{"bridge-nf-0", UnfilteredBridges, cluster.Local, cluster.Local, true, "local sees 10.0.0.1"},
		{"bridge-nf-0", UnfilteredBridges, cluster.Local, cluster.Remote, true, "remote sees 172.18.0.2"},
		{"bridge-nf-0", UnfilteredBridges, cluster.Local, cluster.Node, false, "host-network sees 10.0.0.5"},
		{"bridge-nf-0", UnfilteredBridges, cluster.Outside, cluster.Local, false, "local sees 192.0.2.10"},
		{"bridge-nf-0", HairpinOff, cluster.Local, cluster.Local2, false, "local2 sees 10.0.0.5"},
		{"bridge-nf-0-hairpin-on", UnfilteredBridges, cluster.Local, cluster.Local2, false, "silence"},
	} {
		w, _ := findWorld(test.world)
		b := drawn(w)
		b.lacks = func(c Capability) bool { return c == test.lacks }
		f := flight{from: test.from, to: netip.MustParseAddrPort("10.96.0.1:80"), protocol: v1.ProtocolTCP}
		to := proxy.Destination{Addr: netip.AddrPortFrom(netip.MustParseAddr(names[test.to]), cluster.EndpointPort), Masquerade: test.masked}
		got := b.allowed(f, proxy.Verdict{Action: proxy.Forward, Endpoints: []proxy.Destination{to}})
		testenv.Same(t, []string{test.want}, got, "%+v: outcomes", test)
	}
}

// The capabilities that a dataplane lacks change the allowed outcomes of the packets that
// need them, and no others.
func TestOutcomesFollowCapabilities(t *testing.T) {
	b := setUp(t)
	to := netip.MustParseAddrPort("203.0.113.1:81")
	local := proxy.Destination{Addr: netip.MustParseAddrPort("10.0.0.5:8080")}
	refusals := []string{"failed: invalid argument", "refused", "reset", "silence"}
	for _, test := range []struct {
		name     string
		lacks    []Capability
		protocol v1.Protocol
		verdict  proxy.Verdict
		want     []string
	}{
		{"reject", nil, v1.ProtocolTCP, proxy.Verdict{Action: proxy.Reject}, []string{"reset"}},
		{"reject of UDP", nil, v1.ProtocolUDP, proxy.Verdict{Action: proxy.Reject}, []string{"refused"}},
		{"drop", nil, v1.ProtocolTCP, proxy.Verdict{Action: proxy.Drop}, []string{"silence"}},
		{"other lacks", []Capability{OtherPorts, ClientAddresses}, v1.ProtocolTCP, proxy.Verdict{Action: proxy.Reject}, []string{"reset"}},
		{"reject without Refusals", []Capability{Refusals}, v1.ProtocolUDP, proxy.Verdict{Action: proxy.Reject}, refusals},
		{"drop without Refusals", []Capability{Refusals}, v1.ProtocolTCP, proxy.Verdict{Action: proxy.Drop}, refusals},
		{"echo without Refusals", []Capability{Refusals}, lab.ICMP, proxy.Verdict{Action: proxy.Drop}, append([]string{"answered"}, refusals...)},
		{"pass", []Capability{Refusals}, v1.ProtocolTCP, proxy.Verdict{Action: proxy.Pass}, []string{"gateway sees 10.0.0.6"}},
		{"pass without OtherPorts", []Capability{OtherPorts}, v1.ProtocolTCP, proxy.Verdict{Action: proxy.Pass}, []string{"gateway sees 10.0.0.6", "reset"}},
		{"forward", []Capability{Refusals}, v1.ProtocolTCP, proxy.Verdict{Action: proxy.Forward, Endpoints: []proxy.Destination{local}}, []string{"local sees 10.0.0.6"}},
		{"forward without ClientAddresses", []Capability{ClientAddresses}, v1.ProtocolTCP, proxy.Verdict{Action: proxy.Forward, Endpoints: []proxy.Destination{local}}, []string{"local sees 172.18.0.2"}},
	} {
		b.lacks = func(c Capability) bool { return slices.Contains(test.lacks, c) }
		got := b.allowed(flight{from: cluster.Client, to: to, protocol: test.protocol}, test.verdict)
		testenv.Same(t, test.want, got, "%s: outcomes", test.name)
	}
}

// Without any affinity there is none across addresses, and none that ends.
func TestLacksFollowOneAnother(t *testing.T) {
	for _, test := range []struct {
		lacks, what Capability
		want        bool
	}{
		{Affinity, FrontendAffinity, true},
		{Affinity, AffinityTimeout, true},
		{FrontendAffinity, FrontendAffinity, true},
		{FrontendAffinity, Affinity, false},
		{Failover, FrontendAffinity, false},
	} {
		c := &Config{Lacks: []Capability{test.lacks}}
		testenv.Same(t, test.want, c.lacks(test.what), "a backend that lacks %q: lacks %q", test.lacks, test.what)
	}
}

// A flight is wrong if one of its outcomes is not allowed, and also if one that is expected is missing after all
// rounds: a dataplane that never chooses an endpoint.
func TestOracle(t *testing.T) {
	b := setUpVerdicts(t)
	node := b.host(cluster.Node).Addr(v1.IPv4Protocol)
	local, remote := sees("local", node)[0], sees("remote", node)[0]
	for _, c := range []struct {
		name      string
		at        byte
		endpoints []cluster.Name
		want      []string // the outcomes of the wrong flight; nil if it is right
	}{
		{"all endpoints", toEither, []cluster.Name{cluster.Local, cluster.Remote}, nil},
		{"the only endpoint", toLocalMasked, []cluster.Name{cluster.Local}, nil},
		{"an endpoint is never chosen", toLocalMasked, []cluster.Name{cluster.Local, cluster.Remote}, []string{local}},
		{"an endpoint of another Service", toRemoteMasked, []cluster.Name{cluster.Local}, []string{remote}},
		{"no endpoint", toLocalMasked, nil, []string{local}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := &cluster.Sample{Number: 1}
			for _, at := range c.endpoints {
				x.Endpoints = append(x.Endpoints, cluster.Endpoint{At: at})
			}
			o, to := x.Objects(), vip(v1.IPv4Protocol, c.at)
			o.Services[0].Spec.ClusterIP = to.String()
			f := flight{from: cluster.Outside, to: netip.AddrPortFrom(to, cluster.ServicePort), protocol: v1.ProtocolTCP}
			wrong, err := b.checkOracle(t.Context(), snapshotOf(t, nodeOptions(), o), []flight{f})
			testenv.NoError(t, err)
			var got []string
			for _, w := range wrong {
				got = append(got, w.got...)
			}
			testenv.Same(t, c.want, got, "outcomes of wrong flights")
		})
	}
}
