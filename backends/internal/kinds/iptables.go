package kinds

import "github.com/vipkit/vipkit/backends/internal/xtables"

// IPTablesNames returns the names of the chains of the kinds of iptables, for the name of an
// identity. Those of constant chains, without their prefix, are the names that operators know from
// kube-proxy.
func IPTablesNames(identity string) xtables.Names {
	return xtables.Names{
		Prefix: xtables.Prefix(identity),
		Chains: map[xtables.Table][]string{
			// Only kube-proxy's mode ipvs makes the last ones.
			xtables.NAT: {"SERVICES", "NODEPORTS", "INPUT", "POSTROUTING", "MARK-MASQ", "MARK-NONPODS", "LOAD-BALANCER", "NODE-PORT"},
			xtables.Filter: {"SERVICES", "EXTERNAL-SERVICES", "NODEPORTS", "PROXY-FIREWALL", "CLUSTER-IPS", "UNSERVED", "REJECT", "HEALTH-CHECKS", "FORWARD",
				"NODE-PORT", "SOURCE-RANGES-FIREWALL", "IPVS-FILTER", "IPVS-OUT-FILTER"},
		},
		Open:  []string{"SERVICES", "EXTERNAL-SERVICES", "NODEPORTS", "CLUSTER-IPS", "HEALTH-CHECKS"},
		Kinds: []string{"SVC-", "SVL-", "EXT-", "FW-", "SEP-"}, // the last one is made by kube-proxy only
	}
}
