package ipvs

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/internal/xtables"
)

// Chains end as they must: at addresses of Services, other ports than those of Services are
// rejected, so that programs of the node do not answer there; and the node's own connections to such an
// address, which they have as source, are masqueraded.
func TestRulesOfServiceAddresses(t *testing.T) {
	w := ruleWriter{family: v1.IPv4Protocol, prefix: "V-", mark: 0x8, node: stagetest.Node()}
	chains := map[xtables.Key]string{}
	for _, o := range w.write() {
		chains[o.Key] = o.Value
	}
	for _, c := range []struct {
		table xtables.Table
		chain string
		want  string
	}{
		{xtables.Filter, chainAddresses, "-m set --match-set V-IPVS-IPS dst -g V-IPVS-REJECT\n"},
		{xtables.Filter, chainReject, "-p tcp -j REJECT --reject-with tcp-reset\n-j REJECT --reject-with icmp-port-unreachable\n"},
		{xtables.Filter, chainOutside, "-g V-IPVS-ADDRESSES\n"},
		{xtables.NAT, chainPostrouting, "-m set --match-set V-IPVS-IPS src -j MASQUERADE --random-fully\n"},
	} {
		got, exists := chains[xtables.Key{Table: c.table, Chain: "V-" + c.chain}]
		if !exists || !strings.Contains(got, c.want) {
			t.Errorf("chain %s of table %v: got\n%swant it to have\n%s", c.chain, c.table, got, c.want)
		}
	}
}
