package pmap_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/pmap"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// numbers returns a map of the keys from 0 to n-1, all with value 0.
func numbers(n int) intMap {
	e := pmap.New[key, int]().Edit()
	for k := range key(n) {
		e.Set(k, 0)
	}
	return e.Map()
}

func TestZero(t *testing.T) {
	var zero intMap
	version{zero, nil}.check(t)
	version{zero, nil}.checkGet(t, 1)
	checkDiff(t, version{}, version{})
	if got := zero.Without(1); got != zero {
		t.Errorf("Without: got %v, want the zero Map", got)
	}
	if got := zero.Edit().Map(); got != zero {
		t.Errorf("Map of an empty batch: got %v, want the zero Map", got)
	}
	one := version{zero.With(1, 2), map[key]int{1: 2}}
	one.check(t)
	checkDiff(t, version{}, one)
	checkDiff(t, one, version{})

	var e pmap.Edit[key, int]
	e.Delete(1)
	e.Set(1, 2)
	batch := version{e.Map(), map[key]int{1: 2}}
	batch.check(t)
	checkDiff(t, one, batch)
	version{zero, nil}.check(t)
}

// TestValuesAreCompared checks that == decides what is a change: for pointers, the
// values that they point to do not matter.
func TestValuesAreCompared(t *testing.T) {
	a, b := new(int), new(int)
	m := pmap.New[key, *int]().With(1, a)
	if m.With(1, a) != m {
		t.Error("With of the same pointer: got another map, want the same")
	}
	n := m.With(1, b)
	want := []pmap.Change[key, *int]{{Key: 1, Old: a, New: b, HadOld: true, HasNew: true}}
	if got := slices.Collect(n.Diff(m)); !slices.Equal(got, want) {
		t.Errorf("Diff: got %v, want %v", got, want)
	}
}

func TestNoChangeGivesTheSameMap(t *testing.T) {
	m := numbers(1_000)
	e := m.Edit()
	for k := range key(1_000) {
		e.Set(k, 0)
		e.Delete(k + 1_000)
	}
	if e.Map() != m {
		t.Error("Map of a batch that changes nothing: got another map, want the same")
	}
	if n := pmap.Compared(m, m); n != 0 {
		t.Errorf("Diff of a map with itself entered %d nodes, want 0", n)
	}
}

// TestShapeFollowsContents builds the same contents by different changes.
func TestShapeFollowsContents(t *testing.T) {
	const n = 2_000
	r := testenv.Random(t)
	empty := pmap.New[key, int]()
	sorted := empty.Edit()
	for k := range key(n) {
		sorted.Set(k, 0)
	}
	detours := empty
	for _, k := range r.Perm(2 * n) {
		detours = detours.With(key(k), k)
	}
	e := detours.Edit()
	for _, k := range r.Perm(2 * n) {
		if k < n {
			e.Set(key(k), 0)
		} else {
			e.Delete(key(k))
		}
	}
	if !pmap.SameShape(sorted.Map(), e.Map()) {
		t.Error("shapes of equal contents of one origin: got different ones, want the same")
	}
}

func TestChosenPrioritiesGiveOneShape(t *testing.T) {
	const n = 300
	r := testenv.Random(t)
	empty := pmap.New[key, int]()
	build := func() intMap {
		e := empty.Edit()
		for _, k := range append(r.Perm(n), r.Perm(n)...) {
			e.Delete(key(k))
			e.SetWithPriority(key(k), 0, uint32(k%5))
		}
		return e.Map()
	}
	a, b := build(), build()
	if !pmap.SameShape(a, b) {
		t.Error("shapes of equal contents with equal priorities: got different ones, want the same")
	}
}

// TestDiffCost checks that Diff descends only to the changes. It compares about 20 pairs of subtrees
// for a change here.
func TestDiffCost(t *testing.T) {
	const n, most, mean = 1 << 14, 150, 40
	r := testenv.Random(t)
	m := numbers(n)
	for k := range key(n) { // leave gaps to add keys in
		if k%2 == 1 {
			m = m.Without(k)
		}
	}
	even := func() key { return key(r.IntN(n/2) * 2) }
	for what, derive := range map[string]func(key) intMap{
		"set":            func(k key) intMap { return m.With(k, 1) },
		"delete":         m.Without,
		"add":            func(k key) intMap { return m.With(k+1, 0) },
		"set and reset":  func(k key) intMap { return m.With(k, 1).With(k, 0) },
		"delete and add": func(k key) intMap { return m.Without(k).With(k, 0) },
	} {
		const rounds = 300
		sum := 0
		for range rounds {
			now := derive(even())
			got := max(pmap.Compared(m, now), pmap.Compared(now, m))
			if got > most {
				t.Errorf("%s: Diff compared %d pairs, want at most %d", what, got, most)
			}
			sum += got
		}
		if sum > rounds*mean {
			t.Errorf("%s: Diff compared %d pairs in the mean, want at most %d", what, sum/rounds, mean)
		}
	}
	scattered, run := m.Edit(), m.Edit()
	for k := range key(100) {
		scattered.Set(even(), 1)
		scattered.Delete(even())
		scattered.Set(even()+1, 0)
		run.Delete(n/2 + k)
	}
	for what, c := range map[string]struct {
		now intMap
		max int
	}{
		"scattered changes":     {scattered.Map(), 300 * mean},
		"a run of keys deleted": {run.Map(), most + 4*50},
	} {
		if got := pmap.Compared(m, c.now); got > c.max {
			t.Errorf("%s: Diff compared %d pairs, want at most %d", what, got, c.max)
		}
	}
}

// TestSortedInsertsStayShallow inserts keys in the order that degrades an unbalanced
// search tree to a list.
func TestSortedInsertsStayShallow(t *testing.T) {
	const n = 20_000
	limit := int(5 * math.Log2(n)) // the mean is near 3·log2 n
	up, down := pmap.New[key, int](), pmap.New[key, int]().Edit()
	for k := range key(n) {
		up = up.With(k, 0)
		down.Set(-k, 0)
	}
	for name, m := range map[string]intMap{"ascending": up, "descending": down.Map()} {
		if h := pmap.Height(m); h > limit {
			t.Errorf("%s: height is %d, want at most %d", name, h, limit)
		}
	}
}

func TestEarlyBreak(t *testing.T) {
	old := numbers(60)
	now := old
	for k := range key(60) {
		now = now.With(2*k, 1)
	}
	wantKeys := slices.Sorted(maps.Keys(maps.Collect(now.All())))
	wantChanges := slices.Collect(now.Diff(old))
	if len(wantChanges) != 60 {
		t.Fatalf("Diff yields %d changes, want 60", len(wantChanges))
	}
	all, diff := now.All(), now.Diff(old)
	for stop := 1; stop <= 60; stop++ {
		var keys []key
		for k := range all {
			if keys = append(keys, k); len(keys) == stop {
				break
			}
		}
		if d := gocmp.Diff(wantKeys[:stop], keys); d != "" {
			t.Fatalf("All with a break after %d (-want +got):\n%s", stop, d)
		}
		var changes []change
		for c := range diff {
			if changes = append(changes, c); len(changes) == stop {
				break
			}
		}
		if d := gocmp.Diff(wantChanges[:stop], changes); d != "" {
			t.Fatalf("Diff with a break after %d (-want +got):\n%s", stop, d)
		}
	}
}

// TestConcurrentUse is for the race detector: batches that begin with one map share no
// writable memory with each other or with readers of that map.
func TestConcurrentUse(t *testing.T) {
	base := version{numbers(500), map[key]int{}}
	for k := range key(500) {
		base.want[k] = 0
	}
	var wg sync.WaitGroup
	results := make([]intMap, 4)
	for i := range results {
		wg.Go(func() {
			e := base.m.Edit()
			for k := range key(500) {
				e.Set(k, i)
				e.Delete(k - 250)
				base.m.Get(k)
			}
			results[i] = e.Map()
		})
	}
	wg.Wait()
	base.check(t)
	for i, m := range results {
		want := map[key]int{}
		for k := key(250); k < 500; k++ {
			want[k] = i
		}
		version{m, want}.check(t)
		checkDiff(t, base, version{m, want})
	}
}

// portName has the shape of the keys that the package is made for: five
// strings, most of which have a common prefix.
type portName struct{ namespace, name, port, protocol, family string }

func (n portName) Compare(o portName) int {
	return cmp.Or(
		strings.Compare(n.namespace, o.namespace),
		strings.Compare(n.name, o.name),
		strings.Compare(n.port, o.port),
		strings.Compare(n.protocol, o.protocol),
		strings.Compare(n.family, o.family),
	)
}

type port struct{ number int }

func portNames(n int) []portName {
	names := make([]portName, n)
	for i := range names {
		names[i] = portName{
			namespace: fmt.Sprintf("namespace-%d", i%50),
			name:      fmt.Sprintf("service-%d", i/2),
			port:      "http",
			protocol:  "TCP",
			family:    [2]string{"IPv4", "IPv6"}[i%2],
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	r.Shuffle(n, func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names
}

func load(names []portName, p *port) pmap.Map[portName, *port] {
	e := pmap.New[portName, *port]().Edit()
	for _, n := range names {
		e.Set(n, p)
	}
	return e.Map()
}

func TestAllocations(t *testing.T) {
	names, p, q := portNames(5_000), &port{1}, &port{2}
	m := load(names, p)
	changed := m.With(names[7], q)
	seen := 0
	for _, c := range []struct {
		what string
		max  float64
		run  func()
	}{
		{"Get", 0, func() { m.Get(names[3]) }},
		{"With of the same value", 0, func() { m.With(names[3], p) }},
		{"Without of a missing key", 0, func() { m.Without(portName{}) }},
		{"All", 0, func() {
			for range m.All() {
				seen++
			}
		}},
		{"Diff", 0, func() {
			for range changed.Diff(m) {
				seen++
			}
		}},
		{"With", float64(pmap.Height(m) + 1), func() { m.With(names[3], q) }},
		{"Without", float64(pmap.Height(m)), func() { m.Without(names[3]) }},
		{"load", 2*5_000 + 1, func() { load(names, p) }},
	} {
		if got := testing.AllocsPerRun(20, c.run); got > c.max {
			t.Errorf("%s: %v allocations, want at most %v", c.what, got, c.max)
		}
	}
	if seen == 0 {
		t.Error("the iterators yielded nothing")
	}
}
