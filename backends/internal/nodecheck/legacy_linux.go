package nodecheck

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/legacytables"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// legacyFirewalls checks the tables filter of iptables' legacy flavour.
func (n node) legacyFirewalls(p Packets) (found []*proxy.Problem) {
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
		chain := map[nfnetlink.Hook]string{nfnetlink.Input: "INPUT", nfnetlink.Forward: "FORWARD"}[p.hook]
		isDropped := slices.ContainsFunc(rules, func(r legacytables.Rule) bool { return r.PolicyOf == int(p.hook) && r.Verdict == legacytables.Drop })
		if isDropped && !a.accepts(p) {
			found = append(found, n.problem("chain "+chain+" of "+program, finding{"policy drop", p.consequence, fmt.Sprintf("%s -I %s %s", program, chain, p.Rule.IPTables)}))
		}
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
