package differential

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// The legacy tables of iptables drop connections of Services by default, and accept others. CheckNode of the
// backends that do not use these tables names the chain of each family, and the command that makes
// all connections work.
func TestCheckNodeNamesLegacyFirewalls(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	chains := map[string]string{"nftables": "FORWARD", "iptables-nft": "FORWARD", "tproxy": "INPUT", "redirect": "INPUT"}
	vips := []string{"10.96.0.10:80", "[fd00:96::10]:80"}
	for _, k := range kinds() {
		chain := chains[k.name]
		if chain == "" {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			b := p.open(t, k, backends.Identity{})
			apply(t, b, web(0))
			p.firewall(t, "DROP", "-A FORWARD -i docker0 ! -o docker0 -j ACCEPT", "-A INPUT -p tcp --dport 22 -j ACCEPT",
				"-A INPUT -p icmp -j ACCEPT", "-A INPUT -p icmpv6 -j ACCEPT")
			for _, to := range vips {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				if err := ask(ctx, p.clients["pod"], "tcp", to); !isTimeout(err) {
					t.Errorf("connecting to %s with the firewall: got %v, want no answer", to, err)
				}
				cancel()
			}
			found := p.legacyProblems(t, b)
			var got []string
			for _, f := range found {
				got = append(got, f.Field)
			}
			if want := []string{"chain " + chain + " of iptables-legacy", "chain " + chain + " of ip6tables-legacy"}; !slices.Equal(got, want) {
				t.Errorf("problems: got %q, want %q", got, want)
			}
			for _, f := range found {
				_, remedy, _ := strings.Cut(f.Error(), "remedy: ")
				p.run(t, remedy)
			}
			p.wantService(t, "with the commands of CheckNode", 0, nil)
			if found = p.legacyProblems(t, b); len(found) > 0 {
				t.Errorf("problems with these commands: got %v, want none", found)
			}
			p.firewall(t, "ACCEPT")
			cleanUp(t, b)
		})
	}
}

// firewall sets the policies and rules of INPUT and FORWARD of the legacy tables. Known connections are
// always accepted.
func (p place) firewall(t *testing.T, policy string, rules ...string) {
	t.Helper()
	rules = append(rules, "-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT", "-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT")
	for _, program := range []string{"iptables-legacy ", "ip6tables-legacy "} {
		for _, r := range append([]string{"-F FORWARD", "-F INPUT", "-P FORWARD " + policy, "-P INPUT " + policy}, rules...) {
			p.run(t, program+r)
		}
	}
}

// legacyProblems returns what CheckNode says about legacy tables.
func (p place) legacyProblems(t *testing.T, b proxy.Backend) (found []*proxy.Problem) {
	t.Helper()
	testenv.NoError(t, p.Do(func() error { found = b.Abilities().CheckNode(web(0)); return nil }))
	return slices.DeleteFunc(found, func(f *proxy.Problem) bool { return !strings.Contains(f.Field, "-legacy") })
}
