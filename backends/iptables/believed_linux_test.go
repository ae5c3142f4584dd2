package iptables

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// If the programs of one family are of the legacy flavour, which alternatives allow, the
// generation of nf_tables does not show changes of its rules.
func TestDriftOfMixedFlavours(t *testing.T) {
	s := newStage(t, Options{})
	folder := t.TempDir()
	for name, flavour := range map[string]Flavour{"iptables": NFT, "ip6tables": Legacy} {
		for _, what := range []string{"-save", "-restore"} {
			path, err := xtables.LookUp(name + "-" + string(flavour) + what)
			if err == nil {
				err = os.Symlink(path, filepath.Join(folder, name+what))
			}
			testenv.NoError(t, err)
		}
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	for range 2 { // the second time, nothing is written
		s.Restart(t)
		s.Apply(t, sampleSnapshot())
	}
	s.Options.Flavour = Legacy
	s.run(t, "*nat\n-F\nCOMMIT\n", "ip6tables-restore", "--noflush", "-w", "5")
	if !s.Backend.Abilities().Drifted(t.Context()) {
		t.Error("after the rules of one family were removed: drifted: got false, want true")
	}
	s.Applied = proxy.Snapshot{}
	s.Apply(t, sampleSnapshot())
	if left := s.run(t, "", "ip6tables-save", "-t", "nat"); !strings.Contains(left, "-A VIPKIT-SERVICES") {
		t.Errorf("rules after a full apply: got\n%s\nwant the chain of services", left)
	}
}

// effectiveRules returns the rules that packets traverse: those of the identity's chains,
// sorted in open chains, and the reachable jumps to them. It omits chains without rules,
// because some are kept for foreign jumps, and counters, which iptables does not list and no packet sees.
func (s *stage) effectiveRules(t *testing.T) map[string][]string {
	t.Helper()
	out, n := map[string][]string{}, newNames("vipkit")
	isOwn := func(name string) bool { return n.Owns(xtables.NAT, name) || n.Owns(xtables.Filter, name) }
	isJump := regexp.MustCompile(`^(-m conntrack --ctstate \S+ )?(-m comment --comment "kubernetes [^"]*" )?-j (VIPKIT-\S+)$|` +
		`^(ct state \S+ )?(counter )?jump (VIPKIT-\S+)( comment "kubernetes [^"]*")?$`)
	isEnd := regexp.MustCompile(`^(-m comment --comment \S+ )?(-j (ACCEPT|DROP|RETURN|REJECT.*)|-g .*)$|` +
		`^(counter )?(accept|drop|return|goto \S+|reject.*)( comment .*)?$`)
	over := map[string]bool{}
	s.each(t, func(chain, name, rule string) {
		jump := isJump.FindStringSubmatch(rule)
		if isOwn(name) || isHook(name) && !over[chain] && jump != nil && isOwn(jump[3]+jump[6]) {
			out[chain] = append(out[chain], strings.Replace(rule, "counter ", "", 1))
		}
		over[chain] = over[chain] || isEnd.MatchString(rule)
	})
	for chain, rules := range out {
		if isOpen := strings.Fields(chain); n.IsOpen(isOpen[len(isOpen)-1]) {
			slices.Sort(rules)
		}
	}
	return out
}

func isHook(chain string) bool {
	return slices.Contains([]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, chain)
}

// each visits all rules as the program of the flavour lists them, nft or iptables-save. It skips dormant tables.
func (s *stage) each(t *testing.T, visit func(chain, name, rule string)) {
	t.Helper()
	if s.Options.Flavour == Legacy {
		s.eachLegacy(t, visit)
		return
	}
	table, chain, base, dormant := "", "", false, false
	for line := range strings.Lines(s.tables(t)) {
		line = strings.TrimSpace(regexp.MustCompile(`packets \d+ bytes \d+ `).ReplaceAllString(line+" ", ""))
		switch word := strings.Fields(line); {
		case len(word) > 2 && word[0] == "table":
			table, chain, dormant = word[1]+" "+word[2], "", false
		case line == "flags dormant":
			dormant = true
		case len(word) > 2 && word[0] == "chain":
			chain, base = word[1], false
		case strings.HasPrefix(line, "type "):
			base = true
		case line != "" && line != "}" && chain != "" && !dormant && (base || !isHook(chain)):
			visit(table+" "+chain, chain, line)
		}
	}
}

func (s *stage) eachLegacy(t *testing.T, visit func(chain, name, rule string)) {
	t.Helper()
	for _, family := range []string{"", "6"} {
		table := ""
		for line := range strings.Lines(s.run(t, "", "ip"+family+"tables-save")) {
			line = strings.TrimSuffix(line, "\n")
			if name, ok := strings.CutPrefix(line, "*"); ok {
				table = "ip" + family + " " + name
			}
			if text, ok := strings.CutPrefix(line, "-A "); ok {
				chain, rule, _ := strings.Cut(text, " ")
				visit(table+" "+chain, chain, rule)
			}
		}
	}
}

// tables returns nft's listing of each table. A listing of several tables at once lacks the
// options of iptables targets.
func (s *stage) tables(t *testing.T) (all string) {
	t.Helper()
	for _, family := range []string{"ip", "ip6"} {
		for _, table := range []string{"nat", "filter"} {
			out, err := netnstest.Run(t, s.NS, "", netnstest.NFT(t), "list", "table", family, table)
			if err == nil {
				all += out
			}
		}
	}
	return all
}
