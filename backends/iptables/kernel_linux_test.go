package iptables

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// sampleWorld has a service port of each kind, in both families.
func sampleWorld() proxy.Snapshot {
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
		balanced.AllowedSources = stagetest.Prefixes("192.0.2.0/24", "198.51.100.0/25")
		if fam == v1.IPv6Protocol {
			balanced.AllowedSources = stagetest.Prefixes("2001:db8::/32")
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
	for _, flavour := range flavours() {
		t.Run(string(flavour), func(t *testing.T) { test(t, newStage(t, Options{Flavour: flavour})) })
	}
}

// What is rendered is what iptables-save prints, in both flavours: otherwise a
// restart would write it again.
func TestRestartWritesNothing(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		s.Apply(t, sampleWorld())
		s.Restart(t)
		s.Apply(t, sampleWorld())
		if n := s.Operations(t); n != 0 {
			t.Errorf("a restart took %d operations, want 0; there is:\n%s", n, s.dump(t))
		}
	})
}

// Whatever others do to the rules, a look from the zero snapshot puts it right.
func TestDriftIsRepaired(t *testing.T) {
	const services = "VIPKIT-SERVICES"
	eachFlavour(t, func(t *testing.T, s *stage) {
		s.Apply(t, sampleWorld())
		want := s.dump(t)
		chain := newNames("vipkit").of(prefixCluster, newPort(v1.IPv4Protocol, 0, 0).Name, 0)
		for name, script := range map[string]string{
			"a jump is gone":          "*nat\n-D PREROUTING -m comment --comment \"kubernetes service portals\" -j VIPKIT-SERVICES\nCOMMIT\n",
			"a chain is empty":        "*nat\n-F " + chain + "\nCOMMIT\n",
			"a chain has more":        "*nat\n-I " + chain + " -j RETURN\nCOMMIT\n",
			"services are gone":       "*nat\n-F " + services + "\nCOMMIT\n",
			"a service is there more": "*nat\n-A " + services + " -d 10.9.9.9 -j " + chain + "\nCOMMIT\n",
			"a rule is there twice":   "*filter\n-A VIPKIT-NODEPORTS -d 127.0.0.0/8 -j RETURN\nCOMMIT\n",
			"a jump is there twice":   "*filter\n-I INPUT -j VIPKIT-PROXY-FIREWALL\nCOMMIT\n",
			"everything is gone":      "*nat\n-F\n-X\nCOMMIT\n*filter\n-F\n-X\nCOMMIT\n",
		} {
			s.run(t, script, "iptables-restore", "--noflush", "-w", "5")
			if s.dump(t) == want {
				t.Errorf("%s: nothing has changed, so the test shows nothing", name)
			}
			s.Applied = proxy.Snapshot{}
			s.Apply(t, sampleWorld())
			if diff := cmp.Diff(want, s.dump(t)); diff != "" {
				t.Errorf("%s: after the repair (-want +got):\n%s", name, diff)
			}
		}
	})
}

// withoutCounters drops what of a listing says when it was made.
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

// What others have stays as it is, in its order.
func TestForeignRulesAreLeftAlone(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		s.run(t, foreignRules, "iptables-restore", "--noflush", "-w", "5")
		before := withoutCounters(s.run(t, "", "iptables-save"))
		for range 2 {
			s.Apply(t, sampleWorld())
			s.Restart(t)
		}
		if s.dump(t) == "" {
			t.Error("there are no rules, so the test shows nothing")
		}
		for range 2 { // the second time there is nothing to do
			if err := s.Backend.Cleanup(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(before, withoutCounters(s.run(t, "", "iptables-save"))); diff != "" {
			t.Errorf("what others have (-before +after):\n%s", diff)
		}
	})
}

// Instances of different identities share nothing.
func TestInstancesAreDisjoint(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		other := &stage{s.Beside(t, Options{Flavour: s.Options.Flavour, Identity: backends.Identity{Name: "another-instance", Mark: 0x8000}})}
		s.Apply(t, sampleWorld())
		alone := s.dump(t)
		other.Apply(t, sampleWorld())
		both := other.dump(t)
		if !strings.Contains(both, "0x8000/0x8000") || strings.Contains(both, "VIPKIT-") {
			t.Errorf("the other instance has:\n%s", both)
		}
		s.Restart(t)
		s.Apply(t, sampleWorld())
		if n := s.Operations(t); n != 0 {
			t.Errorf("beside another instance, a restart took %d operations, want 0", n)
		}
		if err := other.Backend.Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(alone, s.dump(t)); diff != "" {
			t.Errorf("after the other one has gone (-want +got):\n%s", diff)
		}
		if left := other.dump(t); left != "" {
			t.Errorf("the other one has left behind:\n%s", left)
		}
	})
}

// With its names, what kube-proxy has left behind is taken over.
func TestTakeover(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		l := &peerLayout{all: world(v1.IPv4Protocol, 5, 3), random: testenv.Random(t)}
		s.run(t, l.text(l.all, nil, true), "iptables-restore", "--noflush", "-w", "5")
		s.Options.Identity.Name = "kube"
		s.Restart(t)
		want := proxy.NewSnapshot(stagetest.Node(), world(v1.IPv4Protocol, 3, 3)...)
		s.Apply(t, want)
		taken := s.dump(t)
		if strings.Contains(taken, "KUBE-SEP-") || !strings.Contains(taken, "KUBE-SVC-") {
			t.Errorf("chains of the former layout are left, or none are there:\n%s", taken)
		}
		fresh := newStage(t, s.Options)
		fresh.Apply(t, want)
		if diff := cmp.Diff(fresh.dump(t), taken); diff != "" {
			t.Errorf("the rules (-fresh +taken over):\n%s", diff)
		}
	})
}

// A node that changes goes into all rules.
func TestNodeChanges(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		s.Apply(t, sampleWorld())
		for _, change := range []func(*proxy.Node){
			func(n *proxy.Node) { n.LocalTraffic.Interface = "cni0" },
			func(n *proxy.Node) { n.LocalTraffic = proxy.LocalTraffic{InterfacePrefix: "veth"} },
			func(n *proxy.Node) { n.LocalTraffic = proxy.LocalTraffic{} },
			func(n *proxy.Node) {
				n.NodePorts = proxy.NodePortAddresses{Prefixes: stagetest.Prefixes("172.18.0.0/24", "0.0.0.0/0", "fd00:18::/64")}
			},
			func(n *proxy.Node) { n.ServiceCIDRs = nil },
		} {
			node := stagetest.Node()
			change(node)
			next := proxy.NewSnapshot(node, slices.Collect(sampleWorld().All())...)
			s.Apply(t, next)
			walked := s.dump(t)
			s.Restart(t)
			s.Apply(t, next)
			if n := s.Operations(t); n != 0 {
				t.Errorf("node %+v: after a change, %d operations were missing; there is:\n%s", node, n, walked)
			}
		}
	})
}

// Where nobody else was, a resync has nothing to look at in the flavour that can
// tell.
func TestDriftIsNoticed(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		checker, ok := s.Backend.(proxy.DriftChecker)
		if !ok {
			t.Fatalf("%T is no DriftChecker", s.Backend)
		}
		isBlind := s.Options.Flavour == Legacy
		expect := func(when string, want bool) {
			t.Helper()
			if got := checker.Drifted(t.Context()); got != (want || isBlind) {
				t.Errorf("%s: drifted: got %t, want %t", when, got, want || isBlind)
			}
		}
		expect("before the first Apply", true)
		s.Apply(t, sampleWorld())
		expect("after a first load", false)
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), world(v1.IPv6Protocol, 3, 3)...))
		expect("after a change", false)
		s.run(t, "*filter\n:OTHER - [0:0]\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
		expect("after a change by others", true)
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), world(v1.IPv4Protocol, 3, 3)...))
		expect("after a change by others and one of our own", true)
		again := s.Applied
		s.Applied = proxy.Snapshot{}
		s.Apply(t, again)
		expect("after a look at everything", false)
	})
}

// A change that meets rules which others have taken away says that the rules are
// not as they were left; a look from the zero snapshot then repairs them.
func TestConflictIsNoticed(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		all := world(v1.IPv4Protocol, 3, 2)
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
				t.Errorf("after %q: the rules (-fresh +repaired):\n%s", script, diff)
			}
		}
	})
}

// Rules of others that lead to chains keep these from being removed, but nothing else
// from being done.
func TestChainInUseByOthers(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		all := world(v1.IPv4Protocol, 4, 2)
		used := []string{newNames("vipkit").of(prefixCluster, all[2].Name, 0), newNames("vipkit").of(prefixCluster, all[3].Name, 0)}
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), all...))
		s.run(t, "*nat\n:OTHER - [0:0]\n-A OTHER -j "+used[0]+"\n-A OTHER -j "+used[1]+"\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
		next := proxy.NewSnapshot(stagetest.Node(), all[0])
		s.Apply(t, next)
		fresh := newStage(t, s.Options)
		fresh.Apply(t, next)
		got := s.dump(t)
		for _, port := range all[1:] { // one that nobody uses is not told from the others
			got = strings.Replace(got, "IPv4 nat "+newNames("vipkit").of(prefixCluster, port.Name, 0)+"\n\n", "", 1)
		}
		if diff := cmp.Diff(fresh.dump(t), got); diff != "" {
			t.Errorf("the rules, but for chains that are empty (-fresh +changed):\n%s", diff)
		}
		if err := s.Backend.Cleanup(t.Context()); err == nil || !strings.Contains(err.Error(), used[0]) || !strings.Contains(err.Error(), used[1]) {
			t.Errorf("Cleanup: got error %v, want one that names %s", err, used)
		}
		s.run(t, "*nat\n-F OTHER\n-X OTHER\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
		if err := s.Backend.Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := s.dump(t); left != "" {
			t.Errorf("after Cleanup there is:\n%s", left)
		}
	})
}

// A new process that finds many rules which nobody wants keeps those that fit.
func TestAdoptionOfManyLeftovers(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		all := world(v1.IPv4Protocol, 60, 1)
		for _, n := range []int{60 - manyRemovals - 4, 5} {
			next := proxy.NewSnapshot(stagetest.Node(), all[:n]...)
			s.Applied = proxy.Snapshot{}
			s.Apply(t, proxy.NewSnapshot(stagetest.Node(), all...))
			s.Restart(t)
			s.Apply(t, next)
			fresh := newStage(t, s.Options)
			fresh.Apply(t, next)
			if diff := cmp.Diff(fresh.dump(t), s.dump(t)); diff != "" {
				t.Errorf("%d services of 60 stay: the rules (-fresh +adopted):\n%s", n, diff)
			}
		}
	})
}
