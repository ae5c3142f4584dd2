package nftables

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// sampleSnapshot needs an object of each kind, in both families: every map has an element,
// except for the maps of clients and that of local endpoints of node ports.
func sampleSnapshot() proxy.Snapshot {
	var all []*proxy.ServicePort
	for _, fam := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		plain := stagetest.Port(fam, 0, 3)

		sticky := stagetest.Port(fam, 1, 2)
		sticky.Affinity = affinity.Config{Timeout: time.Hour}
		sticky.Frontends = append(sticky.Frontends, stagetest.NodePort(fam, 30001))

		local := stagetest.Port(fam, 2, 5)
		local.Local = local.Cluster[:2]
		outside := proxy.TrafficRoute{Action: proxy.Forward, Pool: proxy.PoolLocal}
		lb, np := local.Frontends[0], stagetest.NodePort(fam, 30002)
		lb.Kind, lb.FromOutside = proxy.LoadBalancer, outside
		lb.Addr = stagetest.Port(fam, 500, 0).Frontends[0].Addr
		lb.Restricted, lb.AllowedSources = true, allowedSources(fam)
		np.FromOutside = outside
		local.Frontends = append(local.Frontends, lb, np)

		rejected := stagetest.Port(fam, 3, 0)
		rejected.Frontends[0].FromInside = proxy.TrafficRoute{Action: proxy.Reject}
		rejected.Frontends[0].FromOutside = rejected.Frontends[0].FromInside

		dropped := stagetest.Port(fam, 4, 0)
		dropped.Frontends[0].FromInside = proxy.TrafficRoute{Action: proxy.Drop}
		dropped.Frontends[0].FromOutside = dropped.Frontends[0].FromInside
		all = append(all, plain, sticky, local, rejected, dropped)
	}
	return proxy.NewSnapshot(stagetest.Node(), all...)
}

// tampering is a change that another program makes to the tables.
type tampering struct {
	name string
	do   func(t *testing.T, s *stage)
}

func nftDoes(commands ...string) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) {
		t.Helper()
		s.load(t, strings.Join(commands, "\n")+"\n")
	}
}

func tamperings() []tampering {
	id := affinityID(stagetest.Port(v1.IPv6Protocol, 1, 0).Name)
	all := []tampering{
		{"foreign rule in a chain", nftDoes("add rule ip vipkit pick-4 counter")},
		{"foreign rule with an anonymous set", nftDoes("insert rule ip vipkit services tcp dport { 80, 443 } accept")},
		{"foreign rule in a base chain", nftDoes("add rule ip6 vipkit prerouting meta l4proto { tcp, udp } counter")},
		{"foreign chain with a goto to an own one", nftDoes("add chain ip vipkit theirs", "add rule ip vipkit theirs goto pick-4")},
		{"foreign base chain with an anonymous set", nftDoes("add chain ip vipkit theirs { type filter hook input priority 0; }", "add rule ip vipkit theirs tcp dport { 1, 2 } drop")},
		{"foreign set, and a rule that uses it", nftDoes("add set ip vipkit theirs { type ipv4_addr; }", "insert rule ip vipkit services ip saddr @theirs accept")},
		{"foreign chains, one with a goto to the other", nftDoes("add chain ip vipkit old-a", "add chain ip vipkit old-b", "add rule ip vipkit old-b goto old-a")},
		{"foreign map with a goto to a chain", nftDoes("add map ip vipkit theirs { type ipv4_addr : verdict; }", "add chain ip vipkit pick-512", "add element ip vipkit theirs { 192.0.2.1 : goto pick-512 }")},
		{"pair of two addresses", nftDoes("add element ip vipkit hairpins { 10.9.9.9 . 10.8.8.8 }")},
		{"dormant table", nftDoes("add table ip vipkit { flags dormant; }")},
		{"base chain with policy drop", nftDoes("add chain ip6 vipkit output { policy drop; }")},
		{"foreign element", nftDoes("add element ip vipkit services { 192.0.2.1 . tcp . 80 : goto pick-4 }")},
		{"foreign element with a goto to a foreign chain", nftDoes("add chain ip vipkit theirs", "add element ip vipkit services { 192.0.2.1 . tcp . 80 : goto theirs }")},
		{"another verdict", nftDoes("delete element ip vipkit services { 10.128.0.1 . tcp . 80 }", "add element ip vipkit services { 10.128.0.1 . tcp . 80 : drop }")},
		{"jump instead of goto", nftDoes("delete element ip vipkit nodeports { tcp . 30001 }", "add element ip vipkit nodeports { tcp . 30001 : jump pick-4 }")},
		{"jump to the same chain", nftDoes("delete element ip vipkit nodeports { tcp . 30001 }", "add element ip vipkit nodeports { tcp . 30001 : jump masquerade-stick-"+id+"-pick-nodeport-4 }")},
		{"accept instead of drop", nftDoes("delete element ip vipkit services { 10.128.0.5 . tcp . 80 }", "add element ip vipkit services { 10.128.0.5 . tcp . 80 : accept }")},
		{"accept instead of goto", nftDoes("delete element ip6 vipkit services { fd00:96::1 . tcp . 80 }", "add element ip6 vipkit services { fd00:96::1 . tcp . 80 : accept }")},
		{"another endpoint", nftDoes("delete element ip vipkit endpoints { 10.128.0.1 . tcp . 80 . 1 }", "add element ip vipkit endpoints { 10.128.0.1 . tcp . 80 . 1 : 192.0.2.7 . 1 }")},
		{"same endpoint twice", nftDoes("delete element ip vipkit endpoints { 10.128.0.1 . tcp . 80 . 2 }", "add element ip vipkit endpoints { 10.128.0.1 . tcp . 80 . 2 : 10.0.0.1 . 8080 }")},
		{"empty slot between endpoints", nftDoes("delete element ip6 vipkit endpoints { fd00:96::1 . tcp . 80 . 0 }")},
		{"no rules in a chain", nftDoes("flush chain ip vipkit reject-service")},
		{"no base chain", nftDoes("flush chain ip vipkit prerouting", "delete chain ip vipkit prerouting")},
		{"base chain of another priority, with the same rules", movesBaseChain},
		{"no elements in a map", nftDoes("flush map ip vipkit services")},
		{"no chain", nftDoes("flush map ip vipkit services", "flush map ip vipkit nodeports", "flush chain ip vipkit masquerade-nonpods-pick-4", "delete chain ip vipkit masquerade-nonpods-pick-4")},
		{"a set with other flags", nftDoes("delete table ip vipkit", "table ip vipkit { set cluster-ips { type ipv4_addr; flags timeout; }; }")},
		{"no map of the ports of clients", nftDoes("flush chain ip6 vipkit remember-affinity-"+id, "flush chain ip6 vipkit stick-"+id+"-pick-4",
			"flush chain ip6 vipkit stick-"+id+"-pick-nodeport-4", "delete map ip6 vipkit "+affinityPortMap("affinity-"+id))},
		{"an empty table", nftDoes("delete table ip6 vipkit", "add table ip6 vipkit")},
		{"no table", nftDoes("delete table ip6 vipkit")},
		{"no tables", nftDoes("delete table ip vipkit", "delete table ip6 vipkit")},
	}
	for _, fam := range []nfnetlink.Family{nfnetlink.IPv4, nfnetlink.IPv6} {
		table := nfnetlink.Table{Family: fam, Name: "vipkit"}
		for _, set := range fixedSets() {
			all = append(all, tampering{fmt.Sprintf("one element of %v %s removed", table, set.Name), func(t *testing.T, s *stage) {
				s.deleteElement(t, table, set.Name)
			}})
		}
		all = append(all, tampering{"a source range removed in " + fam.String(), func(t *testing.T, s *stage) {
			s.deleteElement(t, table, s.sourcesOf(t, table))
		}})
	}
	return all
}

// movesBaseChain sets another priority for a base chain, and keeps its rules and their tags.
func movesBaseChain(t *testing.T, s *stage) {
	t.Helper()
	err := s.NS.Do(func() error {
		k, err := newKernel(s.Options)
		if err != nil {
			return err
		}
		defer k.Close() //nolint:errcheck // the test is over if it matters
		for _, o := range k.render(backends.Env{Node: stagetest.Node()}, nil, nil) {
			c, ok := o.Payload.(*nft.Chain)
			if !ok || text(o.Key.name) != chainPrerouting {
				continue
			}
			c.Base.Priority += 7
			if err := k.Commit(t.Context(), []op{{Kind: backends.Replace, Key: o.Key, Value: o.Value, Payload: c}}).Err(); err != nil {
				return err
			}
		}
		return nil
	})
	testenv.NoError(t, err)
}

// deleteElement removes an element of a set, if it has one.
func (s *stage) deleteElement(t *testing.T, table nfnetlink.Table, set string) {
	t.Helper()
	c := s.conn(t)
	var victim nfnetlink.Element
	err := c.Elements(t.Context(), table, set, nfnetlink.Visitor[nfnetlink.Element]{Each: func(e *nfnetlink.Element) error {
		if victim.Key == nil {
			victim = nfnetlink.Element{Key: bytes.Clone(e.Key), IntervalEnd: e.IntervalEnd}
		}
		return nil
	}})
	testenv.NoError(t, err)
	if victim.Key == nil {
		t.Fatalf("%v %s: got no element, want one to remove", table, set)
	}
	var b nfnetlink.Batch
	w := b.Elements(nfnetlink.OpDelete, table, set)
	if victim.IntervalEnd {
		w.KeyEnd(victim.Key)
	} else {
		w.Key(victim.Key)
	}
	testenv.NoError(t, c.Commit(t.Context(), &b))
}

// sourcesOf returns the name of a set of source ranges.
func (s *stage) sourcesOf(t *testing.T, table nfnetlink.Table) string {
	t.Helper()
	var sets []nfnetlink.SetInfo
	testenv.NoError(t, s.conn(t).Sets(t.Context(), table, nfnetlink.Collect(&sets)))
	for i := range sets {
		if strings.HasPrefix(sets[i].Name, sourcesSet("")) {
			return sets[i].Name
		}
	}
	t.Fatalf("%v: got no set of source ranges, want one", table)
	return ""
}

// After any tampering, an Apply from the zero snapshot restores the tables, and the next one
// commits nothing.
func TestAdoptionRepairs(t *testing.T) {
	t.Parallel()
	snapshot := sampleSnapshot()
	for _, c := range tamperings() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.Apply(t, snapshot)
			want := s.listing(t)
			c.do(t, s)
			if s.listing(t) == want {
				t.Fatal("ruleset after the tampering: got no difference, want one")
			}
			s.Restart(t)
			s.repair(t, snapshot)
			s.holds(t, want, "after the repair")

			conn := s.conn(t)
			before := s.generation(t, conn)
			s.Restart(t)
			s.Apply(t, snapshot)
			if after := s.generation(t, conn); after != before {
				t.Errorf("generation of the ruleset: got %d after one more restart, want %d as after the repair", after, before)
			}
			if err := s.Backend.Cleanup(t.Context()); err != nil {
				t.Fatalf("Cleanup: got error %v, want none", err)
			}
			s.holds(t, "", "after Cleanup")
		})
	}
}

// Tables of layout 4, which had the rules of chain unserved at the end of chain services, become tables of
// the present layout in place, and lose no connection.
func TestOlderLayoutIsAdopted(t *testing.T) {
	t.Parallel()
	s := newTestbed(t, 4)
	closeOf(t, s.Backend)
	vip := stagetest.Port(v1.IPv4Protocol, 0, 0)
	vip.Cluster = s.pool(0, 4)
	want := proxy.NewSnapshot(stagetest.Node(), vip, stickyPort(v1.IPv6Protocol, 1, 2))
	older := &stage{&stagetest.Stage[Options]{NS: s.NS, New: newOlder}}
	older.Restart(t)
	older.Apply(t, want)
	closeOf(t, older.Backend)
	if got := s.nft(t, "list", "table", "ip", "vipkit"); strings.Contains(got, "unserved") {
		t.Fatalf("tables of layout 4: got\n%swant no chain unserved", got)
	}

	c := s.connectRepeatedly(t, vip.Frontends[0].Addr.String())
	s.Restart(t)
	s.Apply(t, want)
	connections, _ := c.end()
	if connections == 0 {
		t.Error("connections during the adoption: got none, want some")
	}
	fresh := newStage(t)
	fresh.Apply(t, want)
	s.holds(t, fresh.listing(t), "after the adoption of layout 4")
	if got := s.table(t).Name; got != "vipkit" {
		t.Errorf("table after the adoption: got %s, want vipkit, changed in place", got)
	}
}

// newOlder returns a backend that writes layout 4.
func newOlder(o Options) (proxy.Backend, error) {
	k, err := newKernel(o)
	if err != nil {
		return nil, err
	}
	k.form = fmt.Sprintf("4 %x", k.options.Identity.Mark)
	return backends.New(func(env backends.Env, port *proxy.ServicePort, out []object) []object {
		first := len(out)
		out = k.render(env, port, out)
		later := []handle{handleOf(chainUnserved), handleOf(chainUnservedPrerouting), handleOf(chainUnservedOutput)}
		all := slices.DeleteFunc(out[first:], func(o object) bool { return slices.Contains(later, o.Key.name) })
		for i := range all {
			if c, ok := all[i].Payload.(*nft.Chain); ok && all[i].Key.name == handleOf(chainServices) {
				rules := *c
				rules.Rules = func(a *nft.Assembler) {
					c.Rules(a)
					a.Unserved(setClusterIPs, env.Node.ServiceCIDRs)
				}
				all[i].Payload = &rules
			}
		}
		return out[:first+len(all)]
	}, backends.Target[key, value](k)), nil
}
