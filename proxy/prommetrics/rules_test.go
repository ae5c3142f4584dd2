package prommetrics

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// ruling is a backend that writes rules of iptables.
type ruling struct{ backend }

func (*ruling) CountRules() []proxy.RuleCount {
	return []proxy.RuleCount{{Family: v1.IPv4Protocol, Table: "nat", Existing: 10, Written: 2}, {Family: v1.IPv6Protocol, Table: "filter", Existing: 5}}
}

// Rules are counted in mode iptables, as in kube-proxy, and not in other modes whose backends write some, too.
func TestRulesOfIPTables(t *testing.T) {
	const total, last = "kubeproxy_sync_proxy_rules_iptables_total", "kubeproxy_sync_proxy_rules_iptables_last"
	for mode, want := range map[string][]string{
		"iptables": {
			last + `{ip_family="IPv4",table="nat"} 2`, last + `{ip_family="IPv6",table="filter"} 0`,
			total + `{ip_family="IPv4",table="nat"} 10`, total + `{ip_family="IPv6",table="filter"} 5`,
		},
		"ipvs": nil,
	} {
		m, r := newMetrics(t, mode)
		for _, b := range []proxy.Backend{&backend{}, &ruling{}} {
			testenv.NoError(t, m.begin(&proxy.Runner{Backend: b}))
			if _, can := b.(*ruling); !can {
				wantSamples(t, r, "a backend without rules", "^("+total+"|"+last+")$")
			}
		}
		wantSamples(t, r, "mode "+mode, "^("+total+"|"+last+")", want...)
	}
}
