package endpoints

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const elsewhere = "on another node"

// TestExplain checks the reasons for each rule of Select.
func TestExplain(t *testing.T) {
	for _, c := range []struct {
		name, endpoints string
		policy          Policy
		cluster, local  []string // "+" is of those that are selected
	}{
		{
			name: "ready", endpoints: "R Rl U T Tl X", policy: both(),
			cluster: []string{"+ready", "+ready", "not ready", "terminating", "terminating", "terminating, not serving"},
			local:   []string{elsewhere, "+ready, on this node", elsewhere, elsewhere, "terminating", elsewhere},
		},
		{
			name: "none ready", endpoints: "T Tl X Ul", policy: both(),
			cluster: []string{"+terminating but serving, and no endpoint is ready", "+terminating but serving, and no endpoint is ready", "terminating, not serving", "not ready"},
			local:   []string{elsewhere, "+terminating but serving, and no endpoint on this node is ready", elsewhere, "not ready"},
		},
		{
			name: "no fallback", endpoints: "R Tl", policy: Policy{Local: true, LocalFallback: FallbackNone},
			cluster: []string{"", ""}, local: []string{elsewhere, "terminating"},
		},
		{
			name: "fallback to the cluster", endpoints: "R Tl", policy: Policy{Local: true, LocalFallback: FallbackCluster},
			cluster: []string{"", ""}, local: []string{"+ready; all endpoints on this node terminate", "terminating"},
		},
		{
			name: "zones", endpoints: "Rz+ Rz-", policy: onlyCluster(),
			cluster: []string{"+ready, and a topology hint names the zone of this node", "topology hints name other zones"}, local: []string{"", ""},
		},
		{
			name: "nodes", endpoints: "Rn+ Rn-", policy: onlyCluster(),
			cluster: []string{"+ready, and a topology hint names this node", "topology hints name other nodes"}, local: []string{"", ""},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var cluster, local []string
			for _, x := range Explain(makeEndpoints(t, c.endpoints), c.policy) {
				cluster, local = append(cluster, marked(x.InCluster, x.ClusterReason)), append(local, marked(x.InLocal, x.LocalReason))
			}
			if diff := cmp.Diff([][]string{c.cluster, c.local}, [][]string{cluster, local}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func marked(in bool, why string) string {
	if in {
		return "+" + why
	}
	return why
}

// TestExplainAgreesWithSelect compares both for random endpoints and policies.
func TestExplainAgreesWithSelect(t *testing.T) {
	r := testenv.Random(t)
	coin := func() bool { return r.IntN(3) == 0 }
	for range 3000 {
		all := make([]*Endpoint, r.IntN(6))
		for i := range all {
			all[i] = &Endpoint{
				Addr:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80),
				Ready: coin(), Serving: coin(), Terminating: !coin(), Local: coin(),
				ZoneHint: Hint(r.IntN(3)), NodeHint: Hint(r.IntN(3)),
			}
		}
		p := Policy{Cluster: !coin(), Local: !coin(), LocalFallback: LocalFallback(r.IntN(3))}
		selected := Select(all, p)
		for i, x := range Explain(all, p) {
			cluster, local := slices.Contains(selected.Cluster, all[i]), slices.Contains(selected.Local, all[i])
			if x.InCluster != cluster || x.InLocal != local || (x.ClusterReason == "") == p.Cluster || (x.LocalReason == "") == p.Local {
				t.Fatalf("%+v, endpoint %d of %q: got %+v, want in cluster %t, in local %t, and a reason for each policy", p, i, text(all), x, cluster, local)
			}
		}
	}
}
