package iptables

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func nameOf(namespace, name, port string) proxy.ServicePortName {
	return snapshots.Name(namespace + "/" + name + ":" + port)
}

// With the identity "kube", chains have the names of kube-proxy.
func TestKnownNames(t *testing.T) {
	t.Parallel()
	n := newNames("kube")
	for want, got := range map[string]string{
		"KUBE-SERVICES":             n.chain(chainServices),
		"KUBE-SVC-XPGD46QRK7WJZT7O": n.of(prefixCluster, nameOf("ns1", "svc1", "p80"), 0),
		"KUBE-SVL-XPGD46QRK7WJZT7O": n.of(prefixLocal, nameOf("ns1", "svc1", "p80"), 0),
		"KUBE-EXT-XPGD46QRK7WJZT7O": n.of(prefixExternal, nameOf("ns1", "svc1", "p80"), 0),
	} {
		if got != want {
			t.Errorf("chain: got %s, want %s", got, want)
		}
	}
	if a, b := n.of(prefixFirewall, nameOf("a", "b", ""), 0), n.of(prefixFirewall, nameOf("a", "b", ""), 1); a == b {
		t.Errorf("names of two chains of one kind: got %s twice, want different ones", a)
	}
}

// longestPrefix is the maximum length of an identity's prefix without its dash.
const longestPrefix = 7

// The kernel accepts names of 28 characters, and identities have up to 24.
func TestNamesAreShortEnough(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, identity := range []string{"a", "vipkit", "sevenab", "eightabc", "eightabd", strings.Repeat("x", 24)} {
		n := newNames(identity)
		if other, twice := seen[n.Prefix]; twice {
			t.Errorf("prefixes of identities %s and %s: got %s twice, want different ones", identity, other, n.Prefix)
		}
		seen[n.Prefix] = identity
		if want := strings.ToUpper(identity)[:min(len(identity), 2)]; !strings.HasPrefix(n.Prefix, want) || len(n.Prefix) > longestPrefix+1 {
			t.Errorf("prefix of identity %s: got %s, want one that begins with %s, of up to %d characters", identity, n.Prefix, want, longestPrefix+1)
		}
		if want := strings.ToUpper(identity) + "-"; len(identity) <= longestPrefix && n.Prefix != want {
			t.Errorf("prefix of identity %s: got %s, want %s", identity, n.Prefix, want)
		}
		if len(identity) > longestPrefix && len(n.Prefix) != longestPrefix+1 {
			t.Errorf("prefix of identity %s: got %s, want one of %d characters", identity, n.Prefix, longestPrefix+1)
		}
		for _, name := range []string{
			n.of(prefixCluster, nameOf("ns", "svc", ""), 0), n.of(prefixFirewall, nameOf("ns", "svc", ""), 2),
			n.chain(chainExternalServices), n.chain(chainMarkNonPods),
		} {
			if len(name) > 28 {
				t.Errorf("identity %s: length of chain name %s: got %d, want at most 28", identity, name, len(name))
			}
			if !n.Owns(xtables.NAT, name) && !n.Owns(xtables.Filter, name) {
				t.Errorf("identity %s owns its chain %s: got false, want true", identity, name)
			}
		}
	}
}

// The name of one identity may be a prefix of another one, or of the names of its chains.
func TestOwnership(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		identity, chain string
		table           xtables.Table
		want            bool
	}{
		{"vipkit", "VIPKIT-SERVICES", xtables.NAT, true},
		{"vipkit", "VIPKIT-SERVICES", xtables.Filter, true},
		{"vipkit", "VIPKIT-POSTROUTING", xtables.Filter, false},
		{"vipkit", "VIPKIT-SVC-XPGD46QRK7WJZT7O", xtables.NAT, true},
		{"vipkit", "VIPKIT-SVC-XPGD46QRK7WJZT7", xtables.NAT, false},
		{"vipkit", "VIPKIT-SVC-xpgd46qrk7wjzt7o", xtables.NAT, false},
		{"vipkit", "KUBE-SVC-XPGD46QRK7WJZT7O", xtables.NAT, false},
		{"vipkit", "VIPKITX-SERVICES", xtables.NAT, false},
		{"vipkit", "VIPKIT-HANDMADE", xtables.NAT, false},
		{"kube", "KUBE-SEP-XPGD46QRK7WJZT7O", xtables.NAT, true},
		{"kube", "KUBE-PROXY-CANARY", xtables.NAT, true},
		{"kube", "KUBE-PROXY-CANARY", xtables.Filter, true},
		{"kube", "KUBE-FIREWALL", xtables.Filter, false},
		{"kube", "KUBE-KUBELET-CANARY", xtables.NAT, false},
		{"a", "A-SVC-SVC-XPGD46QRK7WJZT7O", xtables.NAT, false},
		{"a-svc", "A-SVC-SVC-XPGD46QRK7WJZT7O", xtables.NAT, true},
		{"a-svc", "A-SVC-XPGD46QRK7WJZT7O", xtables.NAT, false},
	} {
		testenv.Same(t, c.want, newNames(c.identity).Owns(c.table, c.chain), "identity %s owns %s of table %s", c.identity, c.chain, c.table)
	}
}

// No name of a service port adds a line or closes quotes.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	ownJump := regexp.MustCompile(`^(-m conntrack --ctstate [A-Z]+ )?-m comment --comment "kubernetes [a-z ]+ \(VIPKIT\)" -j VIPKIT-[A-Z-]+$`)
	for _, name := range []string{
		"a\nCOMMIT\n*nat\n-F", `a" -j ACCEPT`, `a\`, `a\" -j ACCEPT`, "a\x00b", "a\rb", "'; reboot; '", "$(reboot)", "\u2028\u202e", "\xff\xfe",
		strings.Repeat("x", 100_000), "", " ", "-j", "#",
	} {
		all := stagetest.RandomPort(rand.New(rand.NewPCG(1, 2)), 0)
		all.Name.Namespace, all.Name.Name, all.Name.Port = name, name, name
		text, err := Rules(Options{}, v1.IPv4Protocol, proxy.NewSnapshot(&proxy.Node{}, all))
		if err != nil {
			t.Fatalf("%.40q: %v", name, err)
		}
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			bad := strings.IndexFunc(line, func(r rune) bool { return r < ' ' || r > '~' })
			command, rest, _ := strings.Cut(line, " ")
			known := strings.HasPrefix(line, ":VIPKIT-") || slices.Contains([]string{"*nat", "*filter", "COMMIT", "-A", "-I"}, command)
			if !known || bad >= 0 || strings.Count(line, `"`)%2 != 0 || strings.Contains(line, `\`) || len(line) > 600 {
				t.Errorf("%.40q: line: got %.200q, want one of the known kinds", name, line)
			}
			chain, rule, _ := strings.Cut(rest, " ")
			if strings.HasPrefix(command, "-") && !strings.HasPrefix(chain, "VIPKIT-") && !ownJump.MatchString(rule) {
				t.Errorf("%.40q: rule in a foreign chain: got %.200q, want none", name, line)
			}
		}
	}
}

// No character of a name can close the quotes around it, even if it has pairs of quotes.
func TestSafe(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`a" -j ACCEPT -m comment --comment "b`: `a? -j ACCEPT -m comment --comment ?b`,
		`'a' \"`:                               "?a? ??", "a\nb\x00\x7f": "a?b??", "é": "?", "~": "~", "shop/web:http 1": "shop/web:http 1", "": "",
	} {
		testenv.Same(t, want, safe(text), "safe(%q)", text)
	}
}
