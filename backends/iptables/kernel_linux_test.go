package iptables

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// sampleSnapshot returns a snapshot with a service port of each kind, in both families.
func sampleSnapshot() proxy.Snapshot {
	var all []*proxy.ServicePort
	for _, fam := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		plain, none, sticky, closed, local := newPort(fam, 0, 3), newPort(fam, 1, 0), newPort(fam, 2, 2), newPort(fam, 3, 2), newPort(fam, 4, 2)
		plain.Frontends = append(plain.Frontends, stagetest.NodePort(fam, 30_000))
		none.Frontends = append(none.Frontends, stagetest.NodePort(fam, 30_001))
		none.Frontends[1].FromInside, none.Frontends[1].FromOutside = none.Frontends[0].FromInside, none.Frontends[0].FromInside
		sticky.Affinity = affinity.Config{Timeout: affinity.DefaultTimeout}
		closed.Name.Protocol, local.Name.Protocol = v1.ProtocolUDP, v1.ProtocolSCTP
		balanced := proxy.Frontend{Kind: proxy.LoadBalancer, Addr: closed.Frontends[0].Addr, Restricted: true}
		balanced.FromInside, balanced.FromOutside = stagetest.Forward(proxy.MasqueradeAlways), stagetest.Forward(proxy.MasqueradeAlways)
		balanced.AllowedSources = snapshots.Prefixes("192.0.2.0/24", "198.51.100.0/25")
		if fam == v1.IPv6Protocol {
			balanced.AllowedSources = snapshots.Prefixes("2001:db8::/32")
		}
		closed.Frontends = []proxy.Frontend{balanced}
		local.Local = local.Cluster[:1]
		outside := stagetest.NodePort(fam, 30_002)
		outside.FromInside = stagetest.Forward(proxy.MasqueradeNonPods)
		outside.FromOutside = proxy.TrafficRoute{Action: proxy.Forward, Pool: proxy.PoolLocal}
		local.Frontends = append(local.Frontends, outside)
		all = append(all, plain, none, sticky, closed, local)
	}
	return proxy.NewSnapshot(stagetest.Node(), all...)
}

func eachFlavour(t *testing.T, test func(*testing.T, *stage)) {
	t.Helper()
	eachFlavourInTurn(t, func(t *testing.T, s *stage) {
		t.Parallel()
		test(t, s)
	})
}

// eachFlavourInTurn is for tests that set variables of the environment.
func eachFlavourInTurn(t *testing.T, test func(*testing.T, *stage)) {
	t.Helper()
	for _, flavour := range flavours() {
		t.Run(string(flavour), func(t *testing.T) { test(t, newStage(t, Options{Flavour: flavour})) })
	}
}

// withoutCounters removes the comments of a listing, which have the time when it was made.
func withoutCounters(listing string) string {
	var out []string
	for line := range strings.Lines(listing) {
		if !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

// With the identity kube, the backend adopts the rules that kube-proxy left.
func TestAdoptionFromKubeProxy(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		l := &peerLayout{all: newPorts(v1.IPv4Protocol, 5, 3), random: testenv.Random(t)}
		s.run(t, l.text(l.all, nil, true), "iptables-restore", "--noflush", "-w", "5")
		s.Options.Identity.Name = "kube"
		s.Restart(t)
		want := proxy.NewSnapshot(stagetest.Node(), newPorts(v1.IPv4Protocol, 3, 3)...)
		s.Apply(t, want)
		adopted := s.dump(t)
		if strings.Contains(adopted, "KUBE-SEP-") || !strings.Contains(adopted, "KUBE-SVC-") {
			t.Errorf("rules after adoption: got\n%s\nwant chains KUBE-SVC- and no KUBE-SEP-", adopted)
		}
		fresh := newStage(t, s.Options)
		fresh.Apply(t, want)
		if diff := cmp.Diff(fresh.dump(t), adopted); diff != "" {
			t.Errorf("rules (-first load +adopted):\n%s", diff)
		}
	})
}

// A change of the node changes all rules that depend on it.
func TestNodeChanges(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		s.Apply(t, sampleSnapshot())
		for _, change := range []func(*proxy.Node){
			func(n *proxy.Node) { n.LocalTraffic.Interface = "cni0" },
			func(n *proxy.Node) { n.LocalTraffic = proxy.LocalTraffic{InterfacePrefix: "veth"} },
			func(n *proxy.Node) { n.LocalTraffic = proxy.LocalTraffic{} },
			func(n *proxy.Node) {
				n.NodePorts = proxy.NodePortAddresses{Prefixes: snapshots.Prefixes("172.18.0.0/24", "0.0.0.0/0", "fd00:18::/64")}
			},
			func(n *proxy.Node) { n.ServiceCIDRs = nil },
		} {
			node := stagetest.Node()
			change(node)
			next := proxy.NewSnapshot(node, slices.Collect(sampleSnapshot().All())...)
			s.Apply(t, next)
			changed := s.dump(t)
			s.Restart(t)
			s.Apply(t, next)
			if n := s.Operations(t); n != 0 {
				t.Errorf("node %+v: operations of a restart after the change: got %d, want 0; rules:\n%s", node, n, changed)
			}
		}
	})
}
