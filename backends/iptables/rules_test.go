package iptables

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/proxy"
)

// What tells pods becomes a match that iptables takes, or a reason why not.
func TestInterfacesOfPods(t *testing.T) {
	o, err := Options{}.complete()
	if err != nil {
		t.Fatal(err)
	}
	longest := strings.Repeat("x", longestInterface)
	for _, c := range []struct {
		name, prefix string
		want         []string
	}{
		{"cni0", "", []string{"-i cni0 "}},
		{"a~", "", []string{"-i a~ "}},
		{"", "veth", []string{"-i veth+ "}},
		{longest, longest[1:], []string{"-i " + longest + " ", "-i " + longest[1:] + "+ "}},
		{"", longest, []string{"-i " + longest + " "}},
		{longest + "x", "", nil},
		{"", "-j", nil},
		{"a b", "", nil},
		{"", "a\nCOMMIT", nil},
		{"a\" -j DROP", "", nil},
		{"a+", "", nil},
		{"é", "", nil},
	} {
		node := &proxy.Node{}
		node.LocalTraffic = proxy.LocalTraffic{Interface: c.name, InterfacePrefix: c.prefix}
		p := newRenderer(o, v1.IPv4Protocol).page(node)
		if (p.err != nil) != (c.want == nil) || p.err == nil && !slices.Equal(p.pods, c.want) {
			t.Errorf("interface %q, prefix %q: got %q and error %v, want %q", c.name, c.prefix, p.pods, p.err, c.want)
		}
	}
}

// Whatever a service port is called, it adds no line and ends no quotes.
func TestHostileNames(t *testing.T) {
	for _, name := range []string{
		"a\nCOMMIT\n*nat\n-F", `a" -j ACCEPT`, `a\`, `a\" -j ACCEPT`, "a\x00b", "a\rb", "'; reboot; '", "$(reboot)", "\u2028\u202e", "\xff\xfe",
		strings.Repeat("x", 100_000), "", " ", "-j", "#",
	} {
		all := randomPort(rand.New(rand.NewPCG(1, 2)), 0)
		all.Name.Namespace, all.Name.Name, all.Name.Port = name, name, name
		text, err := Rules(Options{}, v1.IPv4Protocol, proxy.NewSnapshot(&proxy.Node{}, all))
		if err != nil {
			t.Fatalf("%.40q: %v", name, err)
		}
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			odd := strings.IndexFunc(line, func(r rune) bool { return r < ' ' || r > '~' })
			command, rest, _ := strings.Cut(line, " ")
			known := strings.HasPrefix(line, ":VIPKIT-") || slices.Contains([]string{"*nat", "*filter", "COMMIT", "-A", "-I"}, command)
			if !known || odd >= 0 || !isWhole(line) || len(line) > 600 {
				t.Errorf("%.40q: there is a line %.200q", name, line)
			}
			chain, rule, _ := strings.Cut(rest, " ")
			if strings.HasPrefix(command, "-") && !strings.HasPrefix(chain, "VIPKIT-") && !newNames("vipkit").ownsJump(nat, rule) && !newNames("vipkit").ownsJump(filter, rule) {
				t.Errorf("%.40q: there is a rule in a chain of others: %.200q", name, line)
			}
		}
	}
}

// Nothing of a name can end the quotes around it, even where quotes come in pairs.
func TestSafe(t *testing.T) {
	for text, want := range map[string]string{
		`a" -j ACCEPT -m comment --comment "b`: `a? -j ACCEPT -m comment --comment ?b`,
		`'a' \"`:                               "?a? ??", "a\nb\x00\x7f": "a?b??", "é": "?", "~": "~", "shop/web:http 1": "shop/web:http 1", "": "",
	} {
		if got := safe(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// Ranges are written as iptables prints them.
func TestMatchRange(t *testing.T) {
	for text, want := range map[string]string{
		"10.1.2.3/8": "-s 10.0.0.0/8 ", "192.0.2.1/32": "-s 192.0.2.1/32 ", "0.0.0.0/0": "", "fd00::1/64": "-s fd00::/64 ", "::/0": "",
	} {
		if got := matchRange("-s", stagetest.Prefixes(text)[0]); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
