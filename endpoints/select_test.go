package endpoints

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// makeEndpoints makes endpoints of words, one each: a letter for the
// conditions, then l for a local one, z+ or z- for a zone hint that means this
// zone or another one, n+ or n- for a node hint. The first has address
// 10.0.0.0, and so on.
func makeEndpoints(t *testing.T, words string) []*Endpoint {
	t.Helper()
	var out []*Endpoint
	for i, w := range strings.Fields(words) {
		e := &Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)}
		l := objects.ConditionsOf(w[:1])
		e.Ready, e.Serving, e.Terminating = l.Ready, l.Serving, l.Terminating
		rest := w[1:]
		rest, e.Local = strings.CutPrefix(rest, "l")
		rest, e.ZoneHint = cutHint(rest, "z")
		rest, e.NodeHint = cutHint(rest, "n")
		if rest != "" {
			t.Fatalf("endpoint %q: unknown notation", w)
		}
		out = append(out, e)
	}
	return out
}

func cutHint(s, kind string) (string, Hint) {
	if rest, ok := strings.CutPrefix(s, kind+"+"); ok {
		return rest, HintHere
	}
	if rest, ok := strings.CutPrefix(s, kind+"-"); ok {
		return rest, HintElsewhere
	}
	return s, HintNone
}

// which names the endpoints by the last byte of the address: - for a nil list,
// empty for one that is only empty.
func which(list []*Endpoint) string {
	if list == nil {
		return "-"
	}
	var out []string
	for i := range list {
		out = append(out, fmt.Sprint(list[i].Addr.Addr().As4()[3]))
	}
	return strings.Join(out, " ")
}

type selected struct {
	Cluster, Local      string
	Any, LocalIsCluster bool
}

func summary(s Selection) selected {
	return selected{which(s.Cluster), which(s.Local), s.Any, s.LocalIsCluster}
}

func onlyCluster() Policy { return Policy{Cluster: true} }

func onlyLocal() Policy { return Policy{Local: true} }

func both() Policy { return Policy{Cluster: true, Local: true} }

type selectCase struct {
	name      string
	policy    Policy
	endpoints string
	want      selected
}

func runSelectCases(t *testing.T, cases []selectCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			all := makeEndpoints(t, tc.endpoints)
			before := text(all)
			testenv.Same(t, tc.want, summary(Select(all, tc.policy)), "Select(%s)", tc.endpoints)
			if diff := cmp.Diff(before, text(all)); diff != "" {
				t.Errorf("Select changed its argument (-before +after):\n%s", diff)
			}
		})
	}
}

func TestSelectByPolicy(t *testing.T) {
	runSelectCases(t, []selectCase{
		{"nothing used", Policy{}, "R Rl", selected{Cluster: "-", Local: "-", Any: true}},
		{"cluster", onlyCluster(), "R Rl", selected{Cluster: "0 1", Local: "-", Any: true}},
		{"local", onlyLocal(), "R Rl", selected{Cluster: "-", Local: "1", Any: true}},
		{"both", both(), "R Rl", selected{Cluster: "0 1", Local: "1", Any: true}},
		{"no endpoints, cluster", onlyCluster(), "", selected{Cluster: "-", Local: "-"}},
		{"no endpoints, local", onlyLocal(), "", selected{Cluster: "-", Local: "-"}},
		{"no endpoints, both", both(), "", selected{Cluster: "-", Local: "-"}},
		{"local, all remote", onlyLocal(), "R R", selected{Cluster: "-", Local: "-", Any: true}},
		{"local, all here", onlyLocal(), "Rl Rl", selected{Cluster: "-", Local: "0 1", Any: true}},
		{"both, all here", both(), "Rl Rl", selected{Cluster: "0 1", Local: "0 1", Any: true}},
		{"both, all remote", both(), "R R", selected{Cluster: "0 1", Local: "-", Any: true}},
	})
}

func TestSelectByConditions(t *testing.T) {
	runSelectCases(t, []selectCase{
		{"cluster, some ready", onlyCluster(), "R U", selected{Cluster: "0", Local: "-", Any: true}},
		{"cluster, none ready", onlyCluster(), "U U", selected{Cluster: "-", Local: "-"}},
		{"cluster, single not ready", onlyCluster(), "U", selected{Cluster: "-", Local: "-"}},
		{"cluster, serving is not ready", onlyCluster(), "S", selected{Cluster: "-", Local: "-"}},
		{"cluster, all terminating", onlyCluster(), "Tl T", selected{Cluster: "0 1", Local: "-", Any: true}},
		{"cluster, ready before terminating", onlyCluster(), "T R", selected{Cluster: "1", Local: "-", Any: true}},
		{"cluster, terminating beside not ready", onlyCluster(), "U T X", selected{Cluster: "1", Local: "-", Any: true}},
		{"cluster, terminating and not serving", onlyCluster(), "X X", selected{Cluster: "-", Local: "-"}},
		{"cluster, ready although terminating", onlyCluster(), "P T R", selected{Cluster: "0 2", Local: "-", Any: true}},
		{"cluster, ready without serving", onlyCluster(), "N Q T", selected{Cluster: "0 1", Local: "-", Any: true}},
		{"cluster, fallback ignores hints", onlyCluster(), "Tz- Tz+ Tn+", selected{Cluster: "0 1 2", Local: "-", Any: true}},
		{"local, some ready", onlyLocal(), "Rl Ul R", selected{Cluster: "-", Local: "0", Any: true}},
		{"local, ready before terminating", onlyLocal(), "Tl Rl", selected{Cluster: "-", Local: "1", Any: true}},
		{"local, ready although terminating", onlyLocal(), "Tl Pl", selected{Cluster: "-", Local: "1", Any: true}},
		{"local, fallback", onlyLocal(), "R Tl T", selected{Cluster: "-", Local: "1", Any: true}},
		{"local, not ready does not prevent the fallback", onlyLocal(), "Ul Tl Xl", selected{Cluster: "-", Local: "1", Any: true}},
		{"local, none serves here", onlyLocal(), "Ul Xl R", selected{Cluster: "-", Local: "-", Any: true}},
		{"local, none serves anywhere", onlyLocal(), "Ul Xl U", selected{Cluster: "-", Local: "-"}},
		{"local, only terminating elsewhere", onlyLocal(), "T T", selected{Cluster: "-", Local: "-", Any: true}},
		{"both, only terminating elsewhere", both(), "T T", selected{Cluster: "0 1", Local: "-", Any: true}},
		{"both, local fallback alone", both(), "R Ul Tl T", selected{Cluster: "0", Local: "2", Any: true}},
		{"both, both fall back", both(), "U Tl T", selected{Cluster: "1 2", Local: "1", Any: true}},
	})
}

func TestSelectByHints(t *testing.T) {
	runSelectCases(t, []selectCase{
		{"none ready", onlyCluster(), "Uz+ Un+", selected{Cluster: "-", Local: "-"}},
		{"node", onlyCluster(), "Rn+ Rn-", selected{Cluster: "0", Local: "-", Any: true}},
		{"node before zone", onlyCluster(), "Rz-n+ Rz+n-", selected{Cluster: "0", Local: "-", Any: true}},
		{"no node hint for us, zone", onlyCluster(), "Rz-n- Rz+n-", selected{Cluster: "1", Local: "-", Any: true}},
		{"a node hint is missing, zone", onlyCluster(), "Rz-n+ Rz+", selected{Cluster: "1", Local: "-", Any: true}},
		{"a node hint is missing, no zone", onlyCluster(), "Rn+ R", selected{Cluster: "0 1", Local: "-", Any: true}},
		{"zone", onlyCluster(), "Rz+ Rz- Rz+", selected{Cluster: "0 2", Local: "-", Any: true}},
		{"zone, all of them", onlyCluster(), "Rz+ Rz+", selected{Cluster: "0 1", Local: "-", Any: true}},
		{"no zone hint for us", onlyCluster(), "Rz- Rz-", selected{Cluster: "0 1", Local: "-", Any: true}},
		{"a zone hint is missing", onlyCluster(), "Rz+ R Rz-", selected{Cluster: "0 1 2", Local: "-", Any: true}},
		{"hint is missing where it is ignored", onlyCluster(), "Rz+ Rz- U T", selected{Cluster: "0", Local: "-", Any: true}},
		{"not ready in our zone", onlyCluster(), "Uz+ Rz+ Rz-", selected{Cluster: "1", Local: "-", Any: true}},
		{"only not ready in our zone", onlyCluster(), "Uz+ Rz- Rz-", selected{Cluster: "1 2", Local: "-", Any: true}},
		{"local ignores hints", onlyLocal(), "Rlz+ Rlz- Rz+", selected{Cluster: "-", Local: "0 1", Any: true}},
		{"both, zone and locality differ", both(), "Rlz+ Rlz- Rz- Rz+", selected{Cluster: "0 3", Local: "0 1", Any: true}},
		{"both, node and locality differ", both(), "Rln- Rn+", selected{Cluster: "1", Local: "0", Any: true}},
	})
}

func TestSelectWithLocalFallback(t *testing.T) {
	none := Policy{Local: true, LocalFallback: FallbackNone}
	cluster := Policy{Local: true, LocalFallback: FallbackCluster}
	clusterBoth := Policy{Cluster: true, Local: true, LocalFallback: FallbackCluster}
	runSelectCases(t, []selectCase{
		{"none, ready", none, "Rl Tl", selected{Cluster: "-", Local: "0", Any: true}},
		{"none, terminating", none, "R Tl", selected{Cluster: "-", Local: "-", Any: true}},
		{"none, terminating alone", none, "Tl", selected{Cluster: "-", Local: "-", Any: true}},
		{"none does not affect cluster", Policy{Cluster: true, LocalFallback: FallbackNone}, "Tl T", selected{Cluster: "0 1", Local: "-", Any: true}},
		{"cluster, ready", cluster, "Rl Tl R", selected{Cluster: "-", Local: "0", Any: true}},
		{"cluster, all terminating", cluster, "R Tl Xl R", selected{Cluster: "-", Local: "0 3", Any: true, LocalIsCluster: true}},
		{"cluster, all terminating, both", clusterBoth, "R Tl R", selected{Cluster: "0 2", Local: "0 2", Any: true, LocalIsCluster: true}},
		{"cluster, follows hints", cluster, "Rz+ Tl Rz-", selected{Cluster: "-", Local: "0", Any: true, LocalIsCluster: true}},
		{"cluster, all terminating everywhere", cluster, "Tl T", selected{Cluster: "-", Local: "0 1", Any: true, LocalIsCluster: true}},
		{"cluster, terminating and not serving", cluster, "Xl X", selected{Cluster: "-", Local: "-", LocalIsCluster: true}},
		{"cluster, one is not ready and not terminating", cluster, "R Tl Ul", selected{Cluster: "-", Local: "-", Any: true}},
		{"cluster, none here", cluster, "R T", selected{Cluster: "-", Local: "-", Any: true}},
		{"cluster, no local policy", Policy{Cluster: true, LocalFallback: FallbackCluster}, "R Tl", selected{Cluster: "0", Local: "-", Any: true}},
	})
}

// TestSelectShares: if every endpoint qualifies, the result is the argument.
func TestSelectShares(t *testing.T) {
	for _, tc := range []struct {
		endpoints      string
		policy         Policy
		cluster, local bool
	}{
		{"R R R", onlyCluster(), true, false},
		{"T T T", onlyCluster(), true, false},
		{"Rz+ Rz+", onlyCluster(), true, false},
		{"Rn+", onlyCluster(), true, false},
		{"Rl Rl", both(), true, true},
		{"Tl Tl", both(), true, true},
		{"Rl R", both(), true, false},
	} {
		all := makeEndpoints(t, tc.endpoints)
		s := Select(all, tc.policy)
		if got := len(s.Cluster) > 0 && &s.Cluster[0] == &all[0]; got != tc.cluster {
			t.Errorf("%s: Cluster shares memory with all: got %v, want %v", tc.endpoints, got, tc.cluster)
		}
		if got := len(s.Local) > 0 && &s.Local[0] == &all[0]; got != tc.local {
			t.Errorf("%s: Local shares memory with all: got %v, want %v", tc.endpoints, got, tc.local)
		}
	}
}

// only returns the endpoints for which keep is true.
func only(all []*Endpoint, keep func(e *Endpoint) bool) []*Endpoint {
	var out []*Endpoint
	for _, e := range all {
		if keep(e) {
			out = append(out, e)
		}
	}
	return out
}

// slowSelect is a simple implementation of the documentation of the package, without
// regard to cost.
func slowSelect(all []*Endpoint, p Policy) Selection {
	s := Selection{Any: len(only(all, func(e *Endpoint) bool { return e.Ready || e.Serving && e.Terminating })) > 0}
	cluster := slowCluster(all)
	if p.Cluster {
		s.Cluster = cluster
	}
	if !p.Local {
		return s
	}
	here := only(all, func(e *Endpoint) bool { return e.Local })
	dying := only(here, func(e *Endpoint) bool { return e.Terminating })
	s.Local = only(here, func(e *Endpoint) bool { return e.Ready })
	switch {
	case len(s.Local) > 0:
	case p.LocalFallback == FallbackTerminating:
		s.Local = only(dying, func(e *Endpoint) bool { return e.Serving })
	case p.LocalFallback == FallbackCluster && len(here) > 0 && len(dying) == len(here):
		s.Local, s.LocalIsCluster = cluster, true
	}
	return s
}

// slowCluster returns the endpoints of the Cluster policy.
func slowCluster(all []*Endpoint) []*Endpoint {
	ready := only(all, func(e *Endpoint) bool { return e.Ready })
	sameNode := only(ready, func(e *Endpoint) bool { return e.NodeHint == HintHere })
	sameZone := only(ready, func(e *Endpoint) bool { return e.ZoneHint == HintHere })
	noNode := only(ready, func(e *Endpoint) bool { return e.NodeHint == HintNone })
	noZone := only(ready, func(e *Endpoint) bool { return e.ZoneHint == HintNone })
	switch {
	case len(ready) == 0:
		return only(all, func(e *Endpoint) bool { return e.Serving && e.Terminating })
	case len(sameNode) > 0 && len(noNode) == 0:
		return sameNode
	case len(sameZone) > 0 && len(noZone) == 0:
		return sameZone
	}
	return ready
}

func TestSelectAgainstOracle(t *testing.T) {
	r := testenv.Random(t)
	for range 20_000 {
		all := make([]*Endpoint, r.IntN(7))
		// Few kinds of endpoints at a time, so that "all of them" occurs.
		kinds := 1 + r.IntN(len(objects.Letters()))
		for i := range all {
			l := objects.Letters()[r.IntN(kinds)]
			all[i] = &Endpoint{
				Addr:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80),
				Ready: l.Ready, Serving: l.Serving, Terminating: l.Terminating,
				Local:    r.IntN(3) == 0,
				ZoneHint: Hint(min(r.IntN(6), 2)),
				NodeHint: Hint(min(r.IntN(6), 2)),
			}
		}
		p := Policy{Cluster: r.IntN(2) == 0, Local: r.IntN(2) == 0, LocalFallback: LocalFallback(r.IntN(3))}
		want, got := slowSelect(all, p), Select(all, p)
		if diff := cmp.Diff(summary(want), summary(got)); diff != "" {
			t.Fatalf("Select(%q, %+v) (-want +got):\n%s", text(all), p, diff)
		}
	}
}

func BenchmarkSelect(b *testing.B) {
	for _, n := range []int{10, 100, 5000} {
		ready := make([]*Endpoint, n)
		for i := range ready {
			addr := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
			ready[i] = &Endpoint{Addr: netip.AddrPortFrom(addr, 80), NodeName: "node", Ready: true, Serving: true}
		}
		oneLocal := append([]*Endpoint(nil), ready...)
		oneLocal[n/2] = &Endpoint{Addr: ready[n/2].Addr, Local: true, Ready: true, Serving: true}
		mixed := append([]*Endpoint(nil), ready...)
		mixed[n/2] = &Endpoint{Addr: ready[n/2].Addr}
		for _, bb := range []struct {
			name   string
			all    []*Endpoint
			policy Policy
		}{
			{"AllReady/Cluster", ready, onlyCluster()},
			{"AllReady/Both", oneLocal, both()},
			{"OneUnready/Cluster", mixed, onlyCluster()},
		} {
			b.Run(fmt.Sprintf("%s/%d", bb.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if s := selectSorted(bb.all, bb.policy); len(s.Cluster) == 0 {
						b.Fatal("nothing selected")
					}
				}
			})
		}
	}
}

// Select sorts a list that a caller has made in another order, and keeps the preferred one of two
// records of an address. It does not change the list.
func TestSelectSorts(t *testing.T) {
	at := func(n byte, ready bool) *Endpoint {
		return &Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 80), Ready: ready, Serving: true, Terminating: !ready, Local: true}
	}
	one, two, three, gone := at(1, true), at(2, true), at(3, true), at(2, false)
	all := []*Endpoint{three, gone, one, two}
	s := Select(all, Policy{Cluster: true, Local: true})
	want := []*Endpoint{one, two, three}
	if !slices.Equal(s.Cluster, want) || !slices.Equal(s.Local, want) {
		t.Errorf("got %v and %v, want %v", s.Cluster, s.Local, want)
	}
	if !slices.Equal(all, []*Endpoint{three, gone, one, two}) {
		t.Errorf("the list has changed: %v", all)
	}
	if twice := Select([]*Endpoint{two, two}, Policy{Cluster: true}); len(twice.Cluster) != 1 {
		t.Errorf("an endpoint twice: got %v, want it once", twice.Cluster)
	}
}
