package iptables

import (
	"errors"
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

const foreignRules = `*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:CNI-HOSTPORT - [0:0]
:KUBE-MARK-MASQ - [0:0]
:VIPKIT-BY-HAND - [0:0]
-A PREROUTING -m comment --comment "x -j VIPKIT-SERVICES" -j CNI-HOSTPORT
-A CNI-HOSTPORT -d 10.0.0.0/8 -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A VIPKIT-BY-HAND -j RETURN
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:OTHER-SERVICES - [0:0]
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A OTHER-SERVICES -j DROP
COMMIT
`

// Foreign rules and their order do not change.
func TestForeignRulesAreLeftAlone(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		s.run(t, foreignRules, "iptables-restore", "--noflush", "-w", "5")
		before := withoutCounters(s.run(t, "", "iptables-save"))
		for range 2 {
			s.Apply(t, sampleSnapshot())
			s.Restart(t)
		}
		if s.dump(t) == "" {
			t.Error("rules: got none, want some")
		}
		for range 2 { // the second time, Cleanup has nothing to do
			testenv.NoError(t, s.Backend.Cleanup(t.Context()))
		}
		if diff := cmp.Diff(before, withoutCounters(s.run(t, "", "iptables-save"))); diff != "" {
			t.Errorf("foreign rules (-before +after):\n%s", diff)
		}
	})
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

// In the flavour that uses nf_tables, Drifted is false unless another program has committed to the
// tables of iptables.
func TestDriftIsNoticed(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		isAlways := s.Options.Flavour == Legacy
		expect := func(when string, want bool) {
			t.Helper()
			if got := s.Backend.Abilities().Drifted(t.Context()); got != (want || isAlways) {
				t.Errorf("%s: drifted: got %t, want %t", when, got, want || isAlways)
			}
		}
		expect("before the first Apply", true)
		s.Apply(t, sampleSnapshot())
		expect("after a first load", false)
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), newPorts(v1.IPv6Protocol, 3, 3)...))
		expect("after a change", false)
		if s.Options.Flavour == NFT {
			s.nft(t, "add table inet other\nadd chain inet other other\n")
		}
		expect("after a foreign change of other tables", false)
		s.run(t, "*filter\n:OTHER - [0:0]\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
		expect("after a foreign change", true)
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), newPorts(v1.IPv4Protocol, 3, 3)...))
		expect("after a foreign change and an own one", true)
		again := s.Applied
		s.Applied = proxy.Snapshot{}
		s.Apply(t, again)
		expect("after a full apply", false)
	})
}

// If another program has removed rules that a change needs, Apply returns ErrDataplaneLost. An
// Apply from the zero snapshot then repairs the rules.
func TestConflictIsNoticed(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		all := newPorts(v1.IPv4Protocol, 3, 2)
		first, next := proxy.NewSnapshot(stagetest.Node(), all...), proxy.NewSnapshot(stagetest.Node(), all[0], newPort(v1.IPv4Protocol, 1, 0))
		fresh := newStage(t, s.Options)
		fresh.Apply(t, next)
		for _, script := range []string{
			"*nat\n-F VIPKIT-SERVICES\nCOMMIT\n",
			"*filter\n-F\n-X\nCOMMIT\n",
			"*nat\n-F\n-X\nCOMMIT\n",
		} {
			s.Applied = proxy.Snapshot{}
			s.Apply(t, first)
			s.run(t, script, "iptables-restore", "--noflush", "-w", "5")
			if err := s.Backend.Apply(t.Context(), s.Applied, next); !errors.Is(err, proxy.ErrDataplaneLost) {
				t.Errorf("after %q: got error %v, want %v", script, err, proxy.ErrDataplaneLost)
			}
			s.Applied = proxy.Snapshot{}
			s.Apply(t, next)
			if diff := cmp.Diff(fresh.dump(t), s.dump(t)); diff != "" {
				t.Errorf("after %q: rules (-first load +repaired):\n%s", script, diff)
			}
		}
	})
}

// A chain to which a foreign rule jumps is emptied but not removed, and everything else is
// changed as wanted.
func TestChainInUseByOthers(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		all := newPorts(v1.IPv4Protocol, 4, 2)
		used := []string{newNames("vipkit").of(prefixCluster, all[2].Name, 0), newNames("vipkit").of(prefixCluster, all[3].Name, 0)}
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), all...))
		s.run(t, "*nat\n:OTHER - [0:0]\n-A OTHER -j "+used[0]+"\n-A OTHER -j "+used[1]+"\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
		next := proxy.NewSnapshot(stagetest.Node(), all[0])
		if err := s.Backend.Apply(t.Context(), s.Applied, next); !errors.Is(err, proxy.ErrDataplaneLost) {
			t.Errorf("a change: got error %v, want %v", err, proxy.ErrDataplaneLost)
		}
		s.Applied = proxy.Snapshot{}
		s.Apply(t, next)
		fresh := newStage(t, s.Options)
		fresh.Apply(t, next)
		got := s.dump(t)
		for _, port := range all[2:] {
			got = strings.Replace(got, "IPv4 nat "+newNames("vipkit").of(prefixCluster, port.Name, 0)+"\n\n", "", 1)
		}
		if diff := cmp.Diff(fresh.dump(t), got); diff != "" {
			t.Errorf("rules without empty chains (-first load +changed):\n%s", diff)
		}
		if err := s.Backend.Cleanup(t.Context()); err == nil || !strings.Contains(err.Error(), used[0]) || !strings.Contains(err.Error(), used[1]) {
			t.Errorf("Cleanup: got error %v, want one that names %s", err, used)
		}
		s.run(t, "*nat\n-F OTHER\n-X OTHER\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
		testenv.NoError(t, s.Backend.Cleanup(t.Context()))
		if left := s.dump(t); left != "" {
			t.Errorf("rules after Cleanup: got\n%s\nwant none", left)
		}
	})
}
