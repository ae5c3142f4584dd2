package iptables

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/proxy"
)

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
		if got := safe(text); got != want {
			t.Errorf("safe(%q): got %q, want %q", text, got, want)
		}
	}
}
