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

// checkCache checks what must be true of a Cache between calls.
func checkCache(t *testing.T, c *Cache) {
	t.Helper()
	checkNames(t, c)
	partsOf := checkSlices(t, c)
	for key, p := range c.ports {
		if p.key != key || !sameElements(p.parts, partsOf[p]) {
			t.Errorf("port %v: got other parts than those that slices contribute", key)
		}
		checkPort(t, c, p)
		delete(partsOf, p)
	}
	if len(partsOf) > 0 {
		t.Errorf("got %d ports with parts that are not in the cache, want none", len(partsOf))
	}
	if len(c.touched) > 0 || len(c.parts) > 0 || len(c.reader.records) > 0 || len(c.reader.ports) > 0 || len(c.reader.order) > 0 {
		t.Error("after the call: got content in the buffers, want none")
	}
}

// checkSlices checks the state of each slice, and returns the parts that the slices
// contribute to each port.
func checkSlices(t *testing.T, c *Cache) map[*port][]*part {
	t.Helper()
	partsOf := map[*port][]*part{}
	for name, s := range c.slices {
		if len(s.parts) == 0 {
			t.Errorf("slice %v: got no parts, want at least one", name)
		}
		for i, p := range s.parts {
			if i > 0 && s.parts[i-1].portNumber().compare(p.portNumber()) >= 0 {
				t.Errorf("slice %v: got port %v after %v, want them sorted", name, p.portNumber(), s.parts[i-1].portNumber())
			}
			partsOf[p.port] = append(partsOf[p.port], p)
			if len(p.list) == 0 || s.hints != nil && len(s.hints) != len(p.list) {
				t.Errorf("slice %v: got %d endpoints and %d hints", name, len(p.list), len(s.hints))
			}
		}
	}
	return partsOf
}

// checkNames checks that the users of each name are counted.
func checkNames(t *testing.T, c *Cache) {
	t.Helper()
	want := map[string]int{}
	for _, s := range c.slices {
		for _, e := range s.parts[0].list { // all parts have the same
			want[e.NodeName]++
		}
		for _, h := range s.hints {
			want[h]++
		}
	}
	delete(want, "")
	got := map[string]int{}
	for text, n := range c.reader.names {
		got[text] = n.uses
	}
	testenv.Same(t, want, got, "users of names")
}

// checkPort compares the published list of a port with its parts.
func checkPort(t *testing.T, c *Cache, p *port) {
	t.Helper()
	var all []*Endpoint
	for _, part := range p.parts {
		all = append(all, part.list...)
		if !slices.IsSortedFunc(part.list, (*Endpoint).Compare) {
			t.Errorf("port %v: got a part that is not sorted: %q", p.key, text(part.list))
		}
	}
	sortEndpoints(all)
	want := slices.CompactFunc(all, func(a, b *Endpoint) bool { return a.Addr == b.Addr })
	testenv.Same(t, text(want), text(c.Endpoints(p.key)), "port %v: endpoints", p.key)
	if single := len(p.parts) == 1; single != (p.merge == nil) {
		t.Errorf("port %v: got %d parts and merge %v", p.key, len(p.parts), p.merge)
	}
	if p.merge != nil && len(p.merge.stale) > 0 {
		t.Errorf("port %v: got %d stale parts after a merge, want none", p.key, len(p.merge.stale))
	}
}

func sameElements[T comparable](a, b []T) bool {
	count := map[T]int{}
	for _, x := range a {
		count[x]++
	}
	for _, x := range b {
		count[x]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}
