package nftables

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// slotKey returns the key of endpoint n of frontend f.
func slotKey(f, n int) key {
	return key{kind: kindEndpoint, fam: nfnetlink.IPv4, proto: 6, port: 80, addr: [16]byte{10, 96, 0, byte(f + 1)}, eport: 8080, eaddr: [16]byte{10, 0, byte(n >> 8), byte(n)}}
}

func slotOps(kind backends.OpKind, keys ...key) []op {
	var ops []op
	for _, k := range keys {
		ops = append(ops, op{Kind: kind, Key: k})
	}
	return ops
}

// writes counts the slots that differ between two states of a pool.
func writes(before, after []slot) int {
	n := 0
	for i := range max(len(before), len(after)) {
		if i >= len(before) || i >= len(after) || before[i] != after[i] {
			n++
		}
	}
	return n
}

// After any additions and removals, the slots of a pool have exactly its endpoints, without
// gaps, and no more slots are written than necessary.
func TestSlotsFollowMembers(t *testing.T) {
	t.Parallel()
	r := testenv.Random(t)
	const pools = 3
	current := map[slotPool][]slot{}
	var members [pools]map[int]bool
	for f := range members {
		members[f] = map[int]bool{}
	}
	for step := range 5000 {
		var adds, removes []op
		var added, removed [pools]int
		most := 1 + r.IntN(20)
		for range r.IntN(most) {
			f, n := r.IntN(pools), r.IntN(60)
			k := slotKey(f, n)
			same := func(o op) bool { return o.Key == k }
			if slices.ContainsFunc(adds, same) || slices.ContainsFunc(removes, same) {
				continue // one operation for one object
			}
			if members[f][n] {
				removes, removed[f] = append(removes, op{Kind: backends.Remove, Key: k}), removed[f]+1
				delete(members[f], n)
			} else {
				adds, added[f] = append(adds, op{Kind: backends.Add, Key: k}), added[f]+1
				members[f][n] = true
			}
		}
		before := map[slotPool][]slot{}
		for id, s := range current {
			before[id] = slices.Clone(s)
		}
		var p slotPlan
		p.plan(append(adds, removes...), current)
		p.apply(current)
		for f := range members {
			k := slotKey(f, 0)
			id := k.slotPool()
			checkMembers(t, step, members[f], current[id])
			// Each added endpoint is a write. Each removed one leaves a slot,
			// which is filled or is removed at the end, and filling it may
			// empty the last slot.
			most := max(added[f], removed[f]) + max(0, removed[f]-added[f])
			if got := writes(before[id], current[id]); got > most {
				t.Fatalf("step %d: written slots for %d endpoints added and %d removed: got %d, want at most %d", step, added[f], removed[f], got, most)
			}
		}
	}
}

func checkMembers(t *testing.T, step int, members map[int]bool, slots []slot) {
	t.Helper()
	var want, got []slot
	for n := range members {
		k := slotKey(0, n)
		want = append(want, k.slot())
	}
	got = slices.Clone(slots)
	order := func(a, b slot) int { return slices.Compare(a.addr[:], b.addr[:]) }
	slices.SortFunc(want, order)
	slices.SortFunc(got, order)
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(slot{})); diff != "" {
		t.Fatalf("step %d: endpoints in slots (-want +got):\n%s", step, diff)
	}
}

func keysFrom(first, n int) []key {
	var keys []key
	for i := range n {
		keys = append(keys, slotKey(0, first+i))
	}
	return keys
}

// A plan that is not applied changes nothing.
func TestSlotPlanIsOnlyAPlan(t *testing.T) {
	t.Parallel()
	current := map[slotPool][]slot{}
	var p slotPlan
	p.plan(slotOps(backends.Add, keysFrom(0, 5)...), current)
	p.apply(current)
	k := slotKey(0, 0)
	before := slices.Clone(current[k.slotPool()])
	var other slotPlan
	other.plan(append(slotOps(backends.Add, keysFrom(10, 5)...), slotOps(backends.Remove, keysFrom(1, 3)...)...), current)
	if diff := cmp.Diff(before, current[k.slotPool()], cmp.AllowUnexported(slot{})); diff != "" {
		t.Errorf("slots after a plan that was not applied (-want +got):\n%s", diff)
	}
}
