package endpoints

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
)

// TestAllocations limits the numbers of allocations, which unlike times are the same on
// every machine.
func TestAllocations(t *testing.T) {
	many, slice := manyCache(t), serviceSlice(77)
	big, bigSlice := bigCache(t)
	changed, bigChanged := flip(slice), flip(bigSlice)
	two := objects.Edited(serviceSlice(78), func(s *discoveryv1.EndpointSlice) { s.Ports = append(s.Ports, objects.SlicePorts("https 443")...) })
	twoChanged := flip(two)
	hinted := serviceSlice(79)
	for i := range hinted.Endpoints {
		hinted.Endpoints[i].Hints = objects.Endpoint("10.0.0.1 zones=a").Hints
	}
	hintedChanged := flip(hinted)
	key, bigKey := httpKey(serviceName(77)), httpKey("big")

	update := func(c *Cache, s *discoveryv1.EndpointSlice) {
		if err := c.Update(s); err != nil {
			t.Error(err)
		}
	}
	for _, tc := range []struct {
		name string
		max  float64
		run  func()
	}{
		{"same slice", 0, func() { update(many, slice) }},
		{"endpoint changes, twice", 4, func() { update(many, changed); update(many, slice) }},
		{"endpoint changes, selected, twice", 5, func() {
			update(many, changed)
			Select(many.Endpoints(key), onlyCluster())
			update(many, slice)
			Select(many.Endpoints(key), onlyCluster())
		}},
		{"endpoint with two ports changes, twice", 8, func() { update(many, twoChanged); update(many, two) }},
		{"same slice with hints", 0, func() { update(many, hinted); update(many, hinted) }},
		{"endpoint with hints changes, twice", 4, func() { update(many, hintedChanged); update(many, hinted) }},
		{"same slice of the big service", 0, func() { update(big, bigSlice); big.Endpoints(bigKey) }},
		{"endpoint of the big service changes, twice", 6, func() {
			update(big, bigChanged)
			big.Endpoints(bigKey)
			update(big, bigSlice)
			big.Endpoints(bigKey)
		}},
		{"unknown slice deleted", 0, func() { many.Delete(sliceName("unknown")) }},
		{"same view", 0, func() { many.SetView(many.reader.view) }},
		{"Endpoints", 0, func() { many.Endpoints(key); big.Endpoints(bigKey) }},
	} {
		tc.run() // Once before counting: the first call may add a slice and allocate buffers.
		if got := testing.AllocsPerRun(100, tc.run); got > tc.max {
			t.Errorf("%s: got %v allocations, want at most %v", tc.name, got, tc.max)
		}
	}
}

// TestEndpointsAreShared: unchanged endpoints are the same pointers before and after a
// change, so that comparing two lists mostly compares pointers.
func TestEndpointsAreShared(t *testing.T) {
	c, s := bigCache(t)
	key := httpKey("big")
	before := c.Endpoints(key)
	must(t, c.Update(flip(s)))
	after := c.Endpoints(key)
	if len(before) != 5000 || len(after) != 5000 {
		t.Fatalf("got lists of %d and %d, want 5000", len(before), len(after))
	}
	others := 0
	for i := range before {
		if before[i] != after[i] {
			others++
		}
	}
	if others != 1 {
		t.Errorf("one endpoint changed: got %d new pointers, want 1", others)
	}
}

func TestSelectAllocations(t *testing.T) {
	for _, tc := range []struct {
		endpoints string
		policy    Policy
		max       float64
	}{
		{"R R R", onlyCluster(), 0},
		{"R R R", both(), 0},
		{"Rl Rl", both(), 0},
		{"T T", onlyCluster(), 0},
		{"Rz+ Rz+", onlyCluster(), 0},
		{"", both(), 0},
		{"R R U", onlyCluster(), 1},
		{"R Rl U", both(), 2},
	} {
		all := makeEndpoints(t, tc.endpoints)
		if got := testing.AllocsPerRun(100, func() { Select(all, tc.policy) }); got > tc.max {
			t.Errorf("Select(%s, %+v): got %v allocations, want at most %v", tc.endpoints, tc.policy, got, tc.max)
		}
	}
}
