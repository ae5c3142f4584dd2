package xtables

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// constant returns a backend whose rules do not depend on service ports: chains in all three
// tables, each of them one object, and jumps from all of the kernel's own chains. With sets,
// rules match the members of sets.
func constant(flavour Flavour, withSets bool) Config {
	c := Config{Options: Options{Flavour: flavour, LockWait: DefaultLockWait}, Names: Names{
		Prefix: Prefix("vipkit"),
		Chains: map[Table][]string{NAT: {"MARK", "MASQUERADE", "NOTHING"}, Filter: {"REFUSE"}, Mangle: {"FWMARK", "NOTHING"}},
	}}
	for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		objects := constantObjects(c.Names, family, withSets)
		f := Family{Family: family, Extensions: []Extension{
			{Name: "connmark", Rule: "-m connmark --mark 0x1/0x1", Module: "xt_connmark"},
			{Name: "CONNMARK", Rule: "-j CONNMARK --set-xmark 0x1/0x1", Module: "xt_connmark"},
		}}
		f.Render = func(_ *proxy.Node, port *proxy.ServicePort, out []Object) []Object {
			if port != nil {
				return out
			}
			return append(out, objects...)
		}
		if withSets {
			f.Extensions = append(f.Extensions, Extension{Name: "SET", Table: Mangle, Rule: "-j SET --map-set " + setOf("M", family) + " dst,dst --map-mark", Module: "xt_set"})
		}
		c.Families = append(c.Families, f)
	}
	return c
}

func setOf(name string, family v1.IPFamily) string { return "VIPKIT-" + name + "-" + string(family) }

func constantObjects(n Names, family v1.IPFamily, withSets bool) (all []Object) {
	refusal := "icmp-port-unreachable"
	if family == v1.IPv6Protocol {
		refusal = "icmp6-port-unreachable"
	}
	refuse, mark := []string{"-p tcp -m conntrack --ctstate INVALID -j DROP", "! -o lo -p sctp -j DROP"}, []string{"-p udp -j RETURN"}
	if withSets {
		refuse = append(refuse, "-m set --match-set "+setOf("X", family)+" dst,dst -j REJECT --reject-with "+refusal)
		mark = append(mark, "-j SET --map-set "+setOf("M", family)+" dst,dst --map-mark")
	}
	chain := func(t Table, name string, rules []string, hooks ...string) {
		all = append(all, Object{Key: Key{Table: t, Chain: n.Prefix + name}, Value: Lines(rules)})
		for _, hook := range hooks {
			all = append(all, Object{Key: Key{Table: t, Chain: hook, Rule: "-j " + n.Prefix + name}})
		}
	}
	chain(NAT, "MARK", []string{"-j CONNMARK --set-xmark 0x4000/0x4000"}, "PREROUTING", "OUTPUT")
	chain(NAT, "MASQUERADE", []string{"-m connmark --mark 0x4000/0x4000 -j MASQUERADE --random-fully"}, "POSTROUTING")
	chain(NAT, "NOTHING", nil, "INPUT")
	chain(Filter, "REFUSE", refuse, "INPUT", "FORWARD", "OUTPUT")
	chain(Mangle, "FWMARK", mark, "INPUT", "OUTPUT")
	chain(Mangle, "NOTHING", nil, "PREROUTING", "FORWARD", "POSTROUTING")
	return all
}

// allHooks are the kernel's own chains of all tables.
const allHooks = "*mangle\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n" +
	"*nat\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n"

// newConstant makes a stage with foreign rules. Rules use sets if the kernel and the programs
// have them.
func newConstant(t *testing.T, flavour Flavour) *stage {
	t.Helper()
	s := newStage(t, constant(flavour, false))
	ipset, err := LookUp("ipset")
	for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		kind := []string{"hash:ip,port", "skbinfo", "family", map[v1.IPFamily]string{v1.IPv4Protocol: "inet", v1.IPv6Protocol: "inet6"}[family]}
		for _, name := range []string{"X", "M"} {
			if err == nil {
				_, err = netnstest.Run(t, s.NS, "", ipset, append([]string{"create", setOf(name, family)}, kind...)...)
			}
		}
	}
	if err == nil {
		_, err = s.try(t, "*filter\n:A - [0:0]\n-A A -m set --match-set VIPKIT-X-IPv4 dst,dst\n-F A\n-X A\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
	}
	if err != nil {
		t.Logf("without sets: %v", err)
	}
	s.Options = constant(flavour, err == nil)
	s.Restart(t)
	testenv.NoError(t, s.NS.Do(func() error {
		return stagetest.MakeHooks(t.Context(), string(flavour), allHooks)
	}))
	for _, stem := range []string{"iptables", "ip6tables"} {
		s.run(t, "*mangle\n:CNI - [0:0]\n-A INPUT -j CNI\n-A POSTROUTING -j CNI\nCOMMIT\n*nat\n:INPUT ACCEPT [0:0]\n:CNI - [0:0]\n-A OUTPUT -p tcp -j CNI\nCOMMIT\n", stem+"-restore", "--noflush", "-w", "5")
	}
	return s
}

// listing returns the rules of both families, without comments.
func (s *stage) listing(t *testing.T) string {
	t.Helper()
	lines := strings.SplitAfter(s.run(t, "", "iptables-save")+s.run(t, "", "ip6tables-save"), "\n")
	return strings.Join(slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, "#") }), "")
}

// Constant rules in all tables, with jumps at the front of all of the kernel's own chains, are
// applied, adopted without a write, repaired after any damage, and removed.
func TestConstantRules(t *testing.T) {
	t.Parallel()
	for _, flavour := range []Flavour{Legacy, NFT} {
		t.Run(string(flavour), func(t *testing.T) {
			s := newConstant(t, flavour)
			before := s.listing(t)
			s.Apply(t, someSnapshot())
			want, all := s.dump(t), s.listing(t)
			for _, front := range []string{"-A INPUT -j VIPKIT-FWMARK\n-A INPUT -j CNI\n", "-A POSTROUTING -j VIPKIT-NOTHING\n-A POSTROUTING -j CNI\n"} {
				if strings.Count(all, front) != 2 {
					t.Errorf("rules: got\n%s\nwant %q in both families", all, front)
				}
			}
			loaded := s.Operations(t)
			s.Apply(t, proxy.NewSnapshot(stagetest.Node(), stagetest.Port(v1.IPv4Protocol, 1, 3)))
			if n := s.Operations(t) - loaded; n != 0 {
				t.Errorf("operations of a change of service ports: got %d, want 0", n)
			}
			s.isAdopted(t, all)
			testenv.NoError(t, s.Backend.Cleanup(t.Context()))
			if diff := cmp.Diff(before, s.listing(t)); diff != "" {
				t.Errorf("rules of others (-before +after Cleanup):\n%s", diff)
			}
			s.Applied = proxy.Snapshot{}
			s.Apply(t, someSnapshot())
			for _, damage := range damages() {
				for _, stem := range []string{"iptables", "ip6tables"} {
					s.run(t, damage, stem+"-restore", "--noflush", "-w", "5")
				}
				s.repairs(t, want, damage)
			}
			testenv.NoError(t, s.Backend.Cleanup(t.Context()))
			if left := s.dump(t); left != "" {
				t.Errorf("rules after Cleanup: got\n%s\nwant none", left)
			}
		})
	}
}

// damages returns scripts that damage the rules.
func damages() []string {
	return []string{
		"*mangle\n-F\nCOMMIT\n", "*nat\n-F\nCOMMIT\n", "*filter\n-F\n-X\nCOMMIT\n", "*mangle\n-F\n-X\nCOMMIT\n*nat\n-F\n-X\nCOMMIT\n*filter\n-F\n-X\nCOMMIT\n",
		"*mangle\n-D OUTPUT -j VIPKIT-FWMARK\nCOMMIT\n", "*mangle\n-A VIPKIT-NOTHING -j DROP\nCOMMIT\n", "*mangle\n-I VIPKIT-FWMARK -j RETURN\nCOMMIT\n",
		"*mangle\n-I PREROUTING -j VIPKIT-NOTHING\nCOMMIT\n", "*mangle\n-I PREROUTING -j ACCEPT\nCOMMIT\n", "*nat\n-F VIPKIT-MARK\nCOMMIT\n",
	}
}

// isAdopted requires that a new process writes nothing, and that only the commits of other
// programs count as drift.
func (s *stage) isAdopted(t *testing.T, want string) {
	t.Helper()
	s.Restart(t)
	s.Apply(t, someSnapshot())
	if n := s.Operations(t); n != 0 {
		t.Errorf("operations of a restart: got %d, want 0", n)
	}
	if diff := cmp.Diff(want, s.listing(t)); diff != "" {
		t.Errorf("rules (-before +after a restart):\n%s", diff)
	}
	isNFT := s.Options.Options.Flavour == NFT
	if s.Backend.Abilities().Drifted(t.Context()) == isNFT {
		t.Errorf("drifted: got %t, want %t: the generation of nf_tables shows drift", isNFT, !isNFT)
	}
}

// repairs requires that a full apply makes the rules as they were.
func (s *stage) repairs(t *testing.T, want, damage string) {
	t.Helper()
	if !s.Backend.Abilities().Drifted(t.Context()) {
		t.Errorf("after %q: drifted: got false, want true", damage)
	}
	s.Applied = proxy.Snapshot{}
	s.Apply(t, someSnapshot())
	if diff := cmp.Diff(want, s.dump(t)); diff != "" {
		t.Errorf("after %q: rules (-want +repaired):\n%s", damage, diff)
	}
}

// A backend serves at least one family.
func TestNoFamily(t *testing.T) {
	t.Parallel()
	c := constant(NFT, false)
	c.Families = nil
	if b, err := New(c); b != nil || err == nil {
		t.Errorf("New: got %v, error %v, want an error alone", b, err)
	}
}

// The engine adds the tables that are used to the extensions, and no others.
func TestExtensionsHaveTheirTables(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		names  Names
		family v1.IPFamily
		want   []string
	}{
		{newNames("vipkit"), v1.IPv4Protocol, []string{"iptable_nat", "xt_connmark", "xt_connmark", "iptable_filter"}},
		{constant(NFT, true).Names, v1.IPv6Protocol, []string{"ip6table_nat", "xt_connmark", "xt_connmark", "ip6table_filter", "ip6table_mangle", "xt_set"}},
	} {
		f := constant(NFT, true).Families[0]
		f.Family = c.family
		var got []string
		for _, e := range c.names.extensions(&f) {
			got = append(got, e.Module)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: modules (-want +got):\n%s", c.family, diff)
		}
	}
}
