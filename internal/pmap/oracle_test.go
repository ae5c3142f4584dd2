package pmap_test

import (
	"cmp"
	"maps"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/pmap"
)

type key int

func (k key) Compare(o key) int { return cmp.Compare(k, o) }

type (
	intMap = pmap.Map[key, int]
	change = pmap.Change[key, int]
)

// version is a map and the contents that it must keep.
type version struct {
	m    intMap
	want map[key]int
}

// check compares everything that can be read from a map with the expected contents.
func (v version) check(t testing.TB) {
	t.Helper()
	if err := cmp.Or(pmap.CheckTree(v.m), pmap.CheckPriorities(v.m)); err != nil {
		t.Fatalf("broken tree: %v", err)
	}
	if got := v.m.Len(); got != len(v.want) {
		t.Fatalf("Len() = %d, want %d", got, len(v.want))
	}
	keys := slices.Sorted(maps.Keys(v.want))
	i := 0
	for k, val := range v.m.All() {
		if i == len(keys) {
			t.Fatalf("All() yields %d after the last key", k)
		}
		if want := v.want[keys[i]]; k != keys[i] || val != want {
			t.Fatalf("All(), entry %d: got %d: %d, want %d: %d", i, k, val, keys[i], want)
		}
		i++
	}
	if i != len(keys) {
		t.Fatalf("All() yields %d keys, want %d", i, len(keys))
	}
	for _, k := range keys {
		v.checkGet(t, k)
		v.checkGet(t, k+1)
	}
}

func (v version) checkGet(t testing.TB, k key) {
	t.Helper()
	got, ok := v.m.Get(k)
	if want, wantOK := v.want[k]; got != want || ok != wantOK {
		t.Fatalf("Get(%d) = %d, %t, want %d, %t", k, got, ok, want, wantOK)
	}
}

// checkDiff compares the Diff of two maps with the difference of their expected
// contents.
func checkDiff(t testing.TB, old, now version) {
	t.Helper()
	got, want := slices.Collect(now.m.Diff(old.m)), wantDiff(old.want, now.want)
	if !slices.Equal(got, want) {
		t.Fatalf("Diff is wrong (-want +got):\n%s", gocmp.Diff(want, got))
	}
}

func wantDiff(old, now map[key]int) []change {
	var want []change
	for k, v := range old {
		c := change{Key: k, Old: v, HadOld: true}
		c.New, c.HasNew = now[k]
		if !c.HasNew || c.New != v {
			want = append(want, c)
		}
	}
	for k, v := range now {
		if _, ok := old[k]; !ok {
			want = append(want, change{Key: k, New: v, HasNew: true})
		}
	}
	slices.SortFunc(want, func(a, b change) int { return a.Key.Compare(b.Key) })
	return want
}

// history is a growing set of versions, each derived from another one.
type history struct {
	now  version
	kept []version
}

func newHistory() *history {
	return &history{now: version{pmap.New[key, int](), map[key]int{}}}
}

// keep adds the current version to those that end checks.
func (h *history) keep() {
	h.kept = append(h.kept, version{h.now.m, maps.Clone(h.now.want)})
}

// back makes an old version the current one.
func (h *history) back(i int) {
	v := h.kept[i]
	h.now = version{v.m, maps.Clone(v.want)}
}

func (h *history) set(t testing.TB, k key, v int) {
	t.Helper()
	before := h.now.m
	was, had := h.now.want[k]
	h.now.m, h.now.want[k] = before.With(k, v), v
	if had && was == v && h.now.m != before {
		t.Fatalf("With(%d, %d), which changes nothing: got another map, want the same", k, v)
	}
	h.now.checkGet(t, k)
}

func (h *history) delete(t testing.TB, k key) {
	t.Helper()
	before := h.now.m
	_, had := h.now.want[k]
	h.now.m = before.Without(k)
	delete(h.now.want, k)
	if !had && h.now.m != before {
		t.Fatalf("Without(%d), which changes nothing: got another map, want the same", k)
	}
	h.now.checkGet(t, k)
}

// end checks every kept version again, and its Diff to the current one.
func (h *history) end(t testing.TB) {
	t.Helper()
	h.now.check(t)
	for _, v := range h.kept {
		v.check(t)
		checkDiff(t, v, h.now)
	}
}
