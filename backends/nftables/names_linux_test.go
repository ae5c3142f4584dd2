package nftables

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

func TestClassOf(t *testing.T) {
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
			t.Fatalf("class %d of %d endpoints takes %d of them for sure", class, n, surelyFilled(class))
		}
		// Else more than a 64th of the connections would get past all tries.
		// A single one is where they get to in the end.
		if n > 1 && 2*n < int(class) {
			t.Fatalf("less than half of the %d slots of %d endpoints are filled", class, n)
		}
	}
}

func TestRangesOf(t *testing.T) {
	for _, c := range []struct {
		fam      family
		prefixes []string
		want     string
	}{
		{ipv4, []string{"10.0.0.0/8"}, "10.0.0.0-11.0.0.0"},
		{ipv4, []string{"10.0.0.0/9", "10.128.0.0/9"}, "10.0.0.0-11.0.0.0"},
		{ipv4, []string{"10.128.0.0/9", "10.0.0.0/9"}, "10.0.0.0-11.0.0.0"},
		{ipv4, []string{"192.0.2.0/24", "192.0.2.128/25", "192.0.2.0/25"}, "192.0.2.0-192.0.3.0"},
		{ipv4, []string{"192.0.2.0/25", "192.0.2.0/24", "192.0.2.0/24", "192.0.3.7/32"}, "192.0.2.0-192.0.3.0 192.0.3.7-192.0.3.8"},
		{ipv4, []string{"192.0.2.7/24"}, "192.0.2.0-192.0.3.0"},
		{ipv4, []string{"255.0.0.0/8", "192.0.0.0/2"}, "192.0.0.0-"},
		{ipv4, nil, ""},
		{ipv4, []string{"10.0.0.0/24", "10.0.2.0/24"}, "10.0.0.0-10.0.1.0 10.0.2.0-10.0.3.0"},
		{ipv4, []string{"192.0.2.1/32"}, "192.0.2.1-192.0.2.2"},
		{ipv4, []string{"192.0.2.255/32"}, "192.0.2.255-192.0.3.0"},
		{ipv4, []string{"255.255.255.255/32"}, "255.255.255.255-"},
		{ipv4, []string{"240.0.0.0/4"}, "240.0.0.0-"},
		{ipv4, []string{"0.0.0.0/0"}, "0.0.0.0-"},
		{ipv4, []string{"0.0.0.0/1", "128.0.0.0/1"}, "0.0.0.0-"},
		{ipv6, []string{"2001:db8::/32"}, "2001:db8::-2001:db9::"},
		{ipv6, []string{"::/0"}, "::-"},
		{ipv6, []string{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128"}, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff-"},
	} {
		var parts []string
		for _, r := range rangesOf(c.fam, stagetest.Prefixes(c.prefixes...)) {
			text := addrText(c.fam, r.first) + "-"
			if !r.open {
				text += addrText(c.fam, r.behind)
			}
			parts = append(parts, text)
		}
		if got := strings.Join(parts, " "); got != c.want {
			t.Errorf("%v: got ranges %q, want %q", c.prefixes, got, c.want)
		}
	}
}

func addrText(fam family, a [16]byte) string {
	addr, _ := netip.AddrFromSlice(a[:fam.addrLen()])
	return addr.String()
}

// The name of a set of sources stands for its content.
func TestSourcesName(t *testing.T) {
	p := newPage()
	seen := map[string]string{}
	for _, prefixes := range []string{
		"10.0.0.0/8", "10.0.0.0/9", "10.0.0.0/8 11.0.0.0/9", "10.0.0.0/8 12.0.0.0/8", "0.0.0.0/0", "128.0.0.0/1", "255.255.255.255/32",
	} {
		var sources []netip.Prefix
		for text := range strings.FieldsSeq(prefixes) {
			sources = append(sources, netip.MustParsePrefix(text))
		}
		_, name := p.sourceSet(ipv4, sources)
		if _, again := p.sourceSet(ipv4, sources); again != name {
			t.Errorf("%s: two names, %s and %s", prefixes, name, again)
		}
		if other, ok := seen[name]; ok {
			t.Errorf("%s and %s have one name", prefixes, other)
		}
		seen[name] = prefixes
	}
	_, whole := p.sourceSet(ipv4, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})
	_, halves := p.sourceSet(ipv4, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/9"), netip.MustParsePrefix("10.128.0.0/9")})
	if whole != halves {
		t.Errorf("a range and its two halves have names %s and %s, want one", whole, halves)
	}
}

func newPage() *page {
	node := stagetest.Node()
	o, _ := Options{}.complete()
	b := &book{options: o}
	return b.page(node)
}

func (o Options) complete() (Options, error) {
	var err error
	o.Identity, err = o.Identity.Complete()
	if o.AffinityClients == 0 {
		o.AffinityClients = DefaultAffinityClients
	}
	return o, err
}

func TestTags(t *testing.T) {
	own := chainTag("pick-4")
	of := func(chain string, hash value, i, n uint16) string {
		rule := nfnetlink.RuleInfo{Userdata: string(tag{hash: hash, chain: chainTag(chain), i: i, n: n}.append(nil))}
		return rule.Tag()
	}
	tag := func(hash value, i, n uint16) string { return of("pick-4", hash, i, n) }
	got, ok := parseTag(tag(0x0123456789abcdef, 7, 300))
	if got.hash != 0x0123456789abcdef || got.chain != own || got.i != 7 || got.n != 300 || !ok {
		t.Errorf("a tag, read back: got %+v, %t", got, ok)
	}
	for _, c := range []struct {
		name string
		tags []string
		want value
	}{
		{"no rules", nil, 0},
		{"one rule", []string{tag(5, 0, 1)}, 5},
		{"two rules", []string{tag(5, 0, 2), tag(5, 1, 2)}, 5},
		{"a rule is missing at the end", []string{tag(5, 0, 2)}, 0},
		{"a rule is missing at the start", []string{tag(5, 1, 2)}, 0},
		{"a rule is missing in between", []string{tag(5, 0, 3), tag(5, 2, 3)}, 0},
		{"rules in another order", []string{tag(5, 1, 2), tag(5, 0, 2)}, 0},
		{"a rule twice", []string{tag(5, 0, 2), tag(5, 0, 2)}, 0},
		{"rules of two definitions", []string{tag(5, 0, 2), tag(6, 1, 2)}, 0},
		{"a foreign rule", []string{tag(5, 0, 2), ""}, 0},
		{"a foreign rule with a comment", []string{"\x00\x02x\x00", tag(5, 1, 2)}, 0},
		{"a rule with more user data", []string{tag(5, 0, 1) + "x"}, 0},
	} {
		if got, renamed := hashOf(c.tags, own); got != c.want || renamed {
			t.Errorf("%s: got hash %d, renamed: %t, want %d", c.name, got, renamed, c.want)
		}
	}
	for _, tags := range [][]string{{of("pick-8", 5, 0, 1)}, {"", of("pick-8", 5, 1, 2)}, {tag(5, 0, 2), of("pick-8", 5, 1, 2)}} {
		if _, renamed := hashOf(tags, own); !renamed {
			t.Errorf("rules of another chain, %q: not taken for those of a chain that had another name", tags)
		}
	}
}

// Chains that are found in the kernel must get the level, and so the rank, that
// they were made with: it is part of their key.
func TestLevelOfEveryChain(t *testing.T) {
	o, err := Options{}.complete()
	if err != nil {
		t.Fatal(err)
	}
	b := &book{options: o}
	seen := map[string]bool{}
	check := func(node *proxy.Node, port *proxy.ServicePort) {
		for _, o := range b.render(node, port, nil) {
			k := o.Key
			if k.kind != kindChain {
				continue
			}
			name := b.names.of(k.fam).text(k.name)
			seen[strings.Split(name, "-")[0]] = true
			if got := levelOf(&nfnetlink.ChainInfo{Name: name}); got != k.level {
				t.Errorf("level of chain %s, as it is found: got %d, want %d", name, got, k.level)
			}
			if len(name) > 255 {
				t.Errorf("chain name of %d characters, want at most 255: %s", len(name), name)
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
			t.Errorf("no chain %s... was rendered", prefix)
		}
	}
	if got := levelOf(&nfnetlink.ChainInfo{Name: "somebody-elses"}); got <= levelBase {
		t.Errorf("level of a chain of somebody else: got %d, want one above all others", got)
	}
}

// everyPort gives service ports of all kinds that are of account to chains.
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

// What a chain consists of is part of what an older process left behind: unless
// it is meant to change, its hash must not. If this fails because rules have
// changed, raise the number of the layout and take over the new hashes.
func TestDefinitionsAreStable(t *testing.T) {
	a := assembler{fam: ipv4, mark: 0x4000}
	a.pickChain(8, "endpoints", false)
	if got, want := len(a.rules), picks+3; got != want || a.err != nil {
		t.Fatalf("a pick chain: got %d rules and error %v, want %d rules", got, a.err, want)
	}
	b := assembler{fam: ipv4, mark: 0x4000}
	b.pickChain(8, "endpoints", false)
	if diff := cmp.Diff(a.rules, b.rules); diff != "" {
		t.Errorf("the same rules, assembled twice, differ:\n%s", diff)
	}
	first, second := hashes(), hashes()
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("hashes of two books differ (-first +second):\n%s", diff)
	}
}

// hashes gives the hash of every set and chain that the ports of the tests need.
func hashes() map[string]value {
	all := map[string]value{}
	o, _ := Options{}.complete()
	b := &book{options: o}
	node := stagetest.Node()
	for _, port := range append(everyPort(), nil) {
		for _, o := range b.render(node, port, nil) {
			k, v := o.Key, o.Value
			if k.kind == kindChain || k.kind == kindSet {
				all[k.fam.String()+b.names.of(k.fam).text(k.name)] = v
			}
		}
	}
	return all
}

func (f family) String() string { return string(f.api()) + " " }

// However many Services come and go, what was written for them alone is forgotten
// with them, and so are its names.
func TestBookForgets(t *testing.T) {
	s := newWatched(t, listLimit)
	b := s.kernel.book
	node := stagetest.Node()
	size := func() [4]int {
		p := b.page(node)
		return [4]int{len(p.chains), len(p.sets), len(p.verdicts), len(b.names.v4.byText)}
	}
	var first [4]int
	for i := range 20 {
		port := stickyPort(v1.IPv4Protocol, i, 3)
		f := &port.Frontends[0]
		f.Restricted, f.AllowedSources = true, stagetest.Prefixes(fmt.Sprintf("192.0.2.%d/32", i))
		s.Apply(t, proxy.NewSnapshot(node, port))
		with := size()
		s.Apply(t, proxy.NewSnapshot(node))
		if i == 0 {
			first = size()
		}
		if got := size(); got != first || got[0] >= with[0] || got[1] >= with[1] || got[3] >= with[3] {
			t.Fatalf("after Service %d: got %d chains, sets, verdicts and names, with it %d; want %d as after the first one", i, got, with, first)
		}
	}
}

// What of the node, of the identity and of the options goes into rules must go
// into their hash.
func TestHashesFollowWhatRulesDependOn(t *testing.T) {
	render := func(o Options, node *proxy.Node, port *proxy.ServicePort) map[string]value {
		o, err := o.complete()
		if err != nil {
			t.Fatal(err)
		}
		b := &book{options: o}
		all := map[string]value{}
		for _, p := range []*proxy.ServicePort{nil, port} {
			for _, o := range b.render(node, p, nil) {
				k, v := o.Key, o.Value
				if k.fam == ipv4 && (k.kind == kindChain || k.kind == kindSet) {
					all[b.names.of(k.fam).text(k.name)] = v
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
		{name: "affinity clients", changes: affinityMap(affinityID(sticky.Name), proxy.PoolCluster), options: Options{AffinityClients: 7}},
		{name: "pods", changes: "masquerade-nonpods-stick-" + affinityID(sticky.Name) + "-pick-4", node: func(n *proxy.Node) { n.LocalTraffic.Interface = "cni0" }},
		{name: "service ranges", changes: chainServices, node: func(n *proxy.Node) { n.ServiceCIDRs = nil }},
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
		if base[c.changes] == 0 || got[c.changes] == base[c.changes] {
			t.Errorf("another %s: hash of %s is %x as before, want another", c.name, c.changes, got[c.changes])
		}
	}
}
