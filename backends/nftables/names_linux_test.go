package nftables

import (
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestClassOf(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]uint32{
		0: 4, 1: 4, 2: 4, 3: 4, 4: 4, 5: 8, 8: 8, 9: 16, 16: 16, 17: 32, 1000: 1024, 1024: 1024, 1025: 2048,
		math.MaxInt32: 1 << 31,
	} {
		if got := classOf(n); got != want {
			t.Errorf("class of %d endpoints: got %d, want %d", n, got, want)
		}
	}
	for n := 1; n < 5000; n++ {
		class := classOf(n)
		if int(class) < n || surelyFilled(class) > uint32(n) {
			t.Fatalf("class %d of %d endpoints: surely filled slots: got %d, want at most %d", class, n, surelyFilled(class), n)
		}
		// Otherwise the random tries of more than a 64th of the connections would all
		// fail. The last rule finds a single endpoint.
		if n > 1 && 2*n < int(class) {
			t.Fatalf("filled slots: got %d of %d, want at least half of them", n, class)
		}
	}
}

func TestRangesOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fam      nfnetlink.Family
		prefixes []string
		want     string
	}{
		{nfnetlink.IPv4, []string{"10.0.0.0/8"}, "10.0.0.0-11.0.0.0"},
		{nfnetlink.IPv4, []string{"10.0.0.0/9", "10.128.0.0/9"}, "10.0.0.0-11.0.0.0"},
		{nfnetlink.IPv4, []string{"10.128.0.0/9", "10.0.0.0/9"}, "10.0.0.0-11.0.0.0"},
		{nfnetlink.IPv4, []string{"192.0.2.0/24", "192.0.2.128/25", "192.0.2.0/25"}, "192.0.2.0-192.0.3.0"},
		{nfnetlink.IPv4, []string{"192.0.2.0/25", "192.0.2.0/24", "192.0.2.0/24", "192.0.3.7/32"}, "192.0.2.0-192.0.3.0 192.0.3.7-192.0.3.8"},
		{nfnetlink.IPv4, []string{"192.0.2.7/24"}, "192.0.2.0-192.0.3.0"},
		{nfnetlink.IPv4, []string{"255.0.0.0/8", "192.0.0.0/2"}, "192.0.0.0-"},
		{nfnetlink.IPv4, nil, ""},
		{nfnetlink.IPv4, []string{"10.0.0.0/24", "10.0.2.0/24"}, "10.0.0.0-10.0.1.0 10.0.2.0-10.0.3.0"},
		{nfnetlink.IPv4, []string{"192.0.2.1/32"}, "192.0.2.1-192.0.2.2"},
		{nfnetlink.IPv4, []string{"192.0.2.255/32"}, "192.0.2.255-192.0.3.0"},
		{nfnetlink.IPv4, []string{"255.255.255.255/32"}, "255.255.255.255-"},
		{nfnetlink.IPv4, []string{"240.0.0.0/4"}, "240.0.0.0-"},
		{nfnetlink.IPv4, []string{"0.0.0.0/0"}, "0.0.0.0-"},
		{nfnetlink.IPv4, []string{"0.0.0.0/1", "128.0.0.0/1"}, "0.0.0.0-"},
		{nfnetlink.IPv6, []string{"2001:db8::/32"}, "2001:db8::-2001:db9::"},
		{nfnetlink.IPv6, []string{"::/0"}, "::-"},
		{nfnetlink.IPv6, []string{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128"}, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff-"},
	} {
		var parts []string
		all := rangesOf(c.fam, snapshots.Prefixes(c.prefixes...))
		for i, first := range all.first {
			text := addrText(c.fam, first) + "-"
			if i < len(all.behind) {
				text += addrText(c.fam, all.behind[i])
			}
			parts = append(parts, text)
		}
		if got := strings.Join(parts, " "); got != c.want {
			t.Errorf("rangesOf(%v): got %q, want %q", c.prefixes, got, c.want)
		}
	}
}

func addrText(fam nfnetlink.Family, a [16]byte) string {
	addr, _ := netip.AddrFromSlice(a[:fam.AddrLen()])
	return addr.String()
}

// The name of a set of sources depends on its content only.
func TestSourcesName(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, prefixes := range []string{
		"10.0.0.0/8", "10.0.0.0/9", "10.0.0.0/8 11.0.0.0/9", "10.0.0.0/8 12.0.0.0/8", "0.0.0.0/0", "128.0.0.0/1", "255.255.255.255/32",
	} {
		var sources []netip.Prefix
		for text := range strings.FieldsSeq(prefixes) {
			sources = append(sources, netip.MustParsePrefix(text))
		}
		_, name := sourceSet(nfnetlink.IPv4, sources)
		if _, again := sourceSet(nfnetlink.IPv4, sources); again != name {
			t.Errorf("%s: name: got %s, then %s, want the same", prefixes, name, again)
		}
		if other, ok := seen[name]; ok {
			t.Errorf("names of %s and %s: got the same, want different ones", prefixes, other)
		}
		seen[name] = prefixes
	}
	_, whole := sourceSet(nfnetlink.IPv4, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})
	_, halves := sourceSet(nfnetlink.IPv4, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/9"), netip.MustParsePrefix("10.128.0.0/9")})
	if whole != halves {
		t.Errorf("names of a range and of its two halves: got %s and %s, want the same", whole, halves)
	}
}

func (o Options) complete() (Options, error) {
	var err error
	o.Identity, err = o.Identity.Complete(kinds.NFTables.Defaults())
	return o, err
}

// A chain that is found in the kernel gets the same kind, and so the same rank, as the
// rendered chain: the kind is part of its key.
func TestKindOfEveryChain(t *testing.T) {
	t.Parallel()
	o, err := Options{}.complete()
	testenv.NoError(t, err)
	r := newRenderer(o)
	seen := map[string]bool{}
	check := func(node *proxy.Node, port *proxy.ServicePort) {
		for _, o := range r.render(backends.Env{Node: node}, port, nil) {
			k := o.Key
			if !k.kind.isChain() {
				continue
			}
			name := text(k.name)
			seen[strings.Split(name, "-")[0]] = true
			if got := chainKind(name); got != k.kind {
				t.Errorf("chainKind(%s): got %d, want %d", name, got, k.kind)
			}
			if len(name) > 255 {
				t.Errorf("length of chain name %s: got %d, want at most 255", name, len(name))
			}
		}
	}
	for _, node := range testNodes() {
		check(node, nil)
		for _, port := range everyPort() {
			check(node, port)
		}
	}
	for _, prefix := range []string{"reject", "pick", "stick", "masquerade", "inside", "pod", "restrict", "remember", "services", "prerouting"} {
		if !seen[prefix] {
			t.Errorf("rendered chains %s...: got none, want at least one", prefix)
		}
	}
	if got := chainKind("somebody-elses"); got != kindTable {
		t.Errorf("kind of a foreign chain: got %d, want %d", got, kindTable)
	}
}

// everyPort returns service ports of all kinds that make a difference for chains.
func everyPort() (all []*proxy.ServicePort) {
	actions := []proxy.TrafficRoute{{Action: proxy.Reject}, {Action: proxy.Drop}}
	for _, pool := range []proxy.Pool{proxy.PoolCluster, proxy.PoolLocal} {
		for _, m := range []proxy.Masquerade{proxy.MasqueradeNever, proxy.MasqueradeNonPods, proxy.MasqueradeAlways} {
			actions = append(actions, proxy.TrafficRoute{Action: proxy.Forward, Pool: pool, Masquerade: m})
		}
	}
	i := 0
	for _, fam := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		for _, inside := range actions {
			for _, outside := range actions {
				for _, timeout := range []time.Duration{0, time.Hour} {
					p := stagetest.Port(fam, i, 2+i%20)
					p.Local, p.Affinity = p.Cluster[:1+i%2], affinity.Config{Timeout: timeout}
					p.Frontends = append(p.Frontends, stagetest.NodePort(fam, uint16(30000+i)))
					for f := range p.Frontends {
						p.Frontends[f].FromInside, p.Frontends[f].FromOutside = inside, outside
						p.Frontends[f].Restricted = i%3 == 0
						p.Frontends[f].AllowedSources = allowedSources(fam)
					}
					all = append(all, p)
					i++
				}
			}
		}
	}
	return all
}

// The hash of a chain or set depends on all fields of the node, the identity and the options
// on which its content depends.
func TestHashesFollowWhatRulesDependOn(t *testing.T) {
	t.Parallel()
	render := func(o Options, node *proxy.Node, port *proxy.ServicePort) map[string]value {
		o, err := o.complete()
		testenv.NoError(t, err)
		r := newRenderer(o)
		all := map[string]value{}
		for _, p := range []*proxy.ServicePort{nil, port} {
			for _, o := range r.render(backends.Env{Node: node}, p, nil) {
				k, v := o.Key, o.Value
				if k.fam == nfnetlink.IPv4 && (k.kind.isChain() || k.kind == kindSet) {
					all[text(k.name)] = v
				}
			}
		}
		return all
	}
	sticky := stagetest.Port(v1.IPv4Protocol, 1, 3)
	sticky.Affinity.Timeout = time.Hour
	base := render(Options{}, stagetest.Node(), sticky)
	for _, c := range []struct {
		name, changes string
		options       Options
		node          func(*proxy.Node)
		port          func(*proxy.ServicePort)
	}{
		{name: "mark", changes: chainPostrouting, options: Options{Identity: identity("", 0x8000, 0)}},
		{name: "priority", changes: chainPrerouting, options: Options{Identity: identity("", 0, 5)}},
		{name: "pods", changes: "masquerade-nonpods-stick-" + affinityID(sticky.Name) + "-pick-4", node: func(n *proxy.Node) { n.LocalTraffic.Interface = "cni0" }},
		{name: "range of pods", changes: "masquerade-nonpods-stick-" + affinityID(sticky.Name) + "-pick-4", node: func(n *proxy.Node) { n.LocalTraffic.Sources = snapshots.Prefixes("10.8.0.0/16") }},
		{name: "service ranges", changes: chainUnserved, node: func(n *proxy.Node) { n.ServiceCIDRs = nil }},
		{name: "node-port addresses", changes: chainServices, node: func(n *proxy.Node) { n.NodePorts.All = false }},
		{name: "timeout", changes: "remember-" + affinityMap(affinityID(sticky.Name), proxy.PoolCluster), port: func(p *proxy.ServicePort) { p.Affinity.Timeout = time.Minute }},
	} {
		node, port := stagetest.Node(), *sticky
		if c.node != nil {
			c.node(node)
		}
		if c.port != nil {
			c.port(&port)
		}
		got := render(c.options, node, &port)
		if base[c.changes] == (value{}) || got[c.changes] == base[c.changes] {
			t.Errorf("another %s: hash of %s: got %x as before, want another one", c.name, c.changes, got[c.changes].hash)
		}
	}
}
