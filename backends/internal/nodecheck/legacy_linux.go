package nodecheck

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/legacytables"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// legacyFirewalls checks the tables filter of iptables' legacy flavour.
func (n node) legacyFirewalls(of needs) (found []*proxy.Problem) {
	for _, f := range ipaddr.Families() {
		if !HasServices(n.Snapshot, f) {
			continue
		}
		rules, err := legacytables.Rules(f, "filter")
		if err != nil {
			continue
		}
		program := map[v1.IPFamily]string{v1.IPv4Protocol: "iptables-legacy", v1.IPv6Protocol: "ip6tables-legacy"}[f]
		var a accepted
		for _, r := range rules {
			a.addLegacy(&r)
		}
		for _, r := range rules {
			if r.PolicyOf >= 0 && r.Verdict == legacytables.Drop {
				found = append(found, n.policyProblems(program, a.lacks(nfnetlink.Hook(r.PolicyOf), of), r.PolicyOf)...)
			}
		}
	}
	return found
}

// policyProblems returns what the policy of a chain drops.
func (n node) policyProblems(program string, dropped []lack, hook int) (found []*proxy.Problem) {
	chain := map[int]string{int(nfnetlink.Input): "INPUT", int(nfnetlink.Forward): "FORWARD"}[hook]
	if chain == "" {
		return nil
	}
	for _, l := range dropped {
		var commands []string
		for _, rule := range l.iptables {
			commands = append(commands, fmt.Sprintf("%s -I %s %s", program, chain, rule))
		}
		found = append(found, n.problem("chain "+chain+" of "+program, l.finding(strings.Join(commands, " && "))))
	}
	return found
}

// addLegacy adds a rule of the legacy tables, unless it is the policy of a chain.
func (a *accepted) addLegacy(r *legacytables.Rule) {
	if r.PolicyOf >= 0 {
		return
	}
	c := conditions{accepts: r.Verdict == legacytables.Accept, ports: anyPort(), loaded: interfaceName}
	c.equal(r.Input)
	c.equal(r.Output)
	if c.loaded = protocol; r.Protocol != 0 {
		c.equal([]byte{r.Protocol})
	}
	for _, m := range r.Matches {
		c.match(m.Name, m.Info)
	}
	a.addConditions(&c)
}
