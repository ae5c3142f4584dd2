package endpoints

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
)

func checkEmpty(t *testing.T, c *Cache) {
	t.Helper()
	if len(c.slices) > 0 || len(c.ports) > 0 || len(c.reader.names) > 0 {
		t.Errorf("got %d slices, %d ports and %d names in the cache, want none", len(c.slices), len(c.ports), len(c.reader.names))
	}
	checkCache(t, c)
}

func TestUnknownRemovalsLeaveNothing(t *testing.T) {
	c, notified := newTestCache()
	for i := range 1000 {
		c.Delete(sliceName(fmt.Sprint(i)))
	}
	if n := notified.take(); len(n) > 0 {
		t.Errorf("notices of unknown slices: got %q, want none", n)
	}
	checkEmpty(t, c)
}

// TestCyclesLeaveNothing adds and deletes slices again and again, alone and beside two
// slices that stay, without reading the list.
func TestCyclesLeaveNothing(t *testing.T) {
	c, _ := newTestCache()
	add := func(name, service, endpoint string) {
		must(t, c.Update(apiSlice(name, service, endpoint)))
	}
	for i := range 10_000 {
		node := fmt.Sprint(i)
		add(node, "service-"+node, "10.0.0.1 R @"+node+" zones="+node)
		c.Delete(sliceName(node))
	}
	checkEmpty(t, c)

	add("stays", "web", "10.0.0.1 R")
	add("stays too", "web", "10.0.0.2 R")
	for i := range 1000 {
		node := fmt.Sprint(i)
		add(node, "web", "10.0.0.3 R @"+node+" nodes="+node)
		add(node, "web", "10.0.0.4 R @"+node+" nodes="+node)
		c.Delete(sliceName(node))
	}
	if stale := len(c.ports[webPort("http")].merge.stale); stale > 2 {
		t.Errorf("list that is never read: got %d stale parts, want at most 2", stale)
	}
	checkCache(t, c)
	c.Delete(sliceName("stays"))
	c.Delete(sliceName("stays too"))
	checkEmpty(t, c)
}

// TestNodeNamesAreShared: 100,000 endpoints on 1,000 nodes need 1,000 strings for names.
func TestNodeNamesAreShared(t *testing.T) {
	c := manyCache(t)
	texts := map[*byte]bool{}
	endpoints := 0
	for key := range c.ports {
		for _, e := range c.Endpoints(key) {
			texts[unsafe.StringData(e.NodeName)] = true
			endpoints++
		}
	}
	if endpoints != 100_000 || len(texts) != 1000 || len(c.reader.names) != 1000 {
		t.Errorf("got %d endpoints, %d strings and %d registered names, want 100000, 1000 and 1000", endpoints, len(texts), len(c.reader.names))
	}
}

// TestObjectsAreNotKept: the Cache keeps no references to API objects.
func TestObjectsAreNotKept(t *testing.T) {
	c, _ := newTestCache()
	collected := make(chan struct{})
	func() {
		// All strings of the object are parts of one large text, as with
		// decoders that do not copy.
		large := fmt.Sprintf("%01000000d a web http 10.0.0.1 node zone ns", 0)
		words := strings.Fields(large)[1:]
		s := apiSlice(words[0], words[1], "10.0.0.1 @node zones=zone")
		s.Namespace = words[6]
		s.Ports[0].Name = &words[2]
		s.Endpoints[0].Addresses[0] = words[3]
		s.Endpoints[0].NodeName = &words[4]
		s.Endpoints[0].Hints.ForZones[0].Name = words[5]
		runtime.AddCleanup(unsafe.StringData(large), func(struct{}) { close(collected) }, struct{}{})
		must(t, c.Update(s))
	}()
	want := []string{"10.0.0.1:80 R @node zone-"}
	if got := text(c.Endpoints(webPort("http"))); len(got) != 1 || got[0] != want[0] {
		t.Fatalf("endpoints: got %q, want %q", got, want)
	}
	for range 100 {
		runtime.GC()
		select {
		case <-collected:
			runtime.KeepAlive(c)
			return
		default:
			runtime.Gosched()
		}
	}
	t.Error("the text of the object is still referenced")
	runtime.KeepAlive(c)
}

func TestWorkingMemoryIsBounded(t *testing.T) {
	c, _ := newTestCache()
	s := makeSlice("big", "big", 1, 20_000)
	must(t, c.Update(s))
	must(t, c.Update(objects.Edited(s, func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil })))
	if got := cap(c.reader.records); got > 2048 {
		t.Errorf("after a huge slice: got capacity for %d records, want at most 2048", got)
	}
	checkEmpty(t, c)
}

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
