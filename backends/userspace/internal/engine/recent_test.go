package engine

import (
	"maps"
	"slices"
	"testing"
)

func TestRecent(t *testing.T) {
	r := recent[int, string]{limit: 3}
	want := func(when string, keys ...int) {
		t.Helper()
		if got := slices.Sorted(maps.Keys(r.at)); !slices.Equal(got, keys) || r.order.Len() != len(keys) {
			t.Errorf("%s: got %v, %d in order, want %v", when, got, r.order.Len(), keys)
		}
	}
	for i := range 4 {
		r.put(i, "old")
	}
	want("with one too many", 1, 2, 3)
	r.put(1, "new")
	r.put(4, "new")
	want("when the first was put again", 1, 3, 4)
	if v := r.get(1); v == nil || *v != "new" {
		t.Errorf("got %v, want what was put last", v)
	}
	r.put(5, "old")
	want("before some go", 1, 4, 5)
	r.removeWhile(func(v *string) bool { return *v == "old" })
	want("when the first is to stay", 1, 4, 5)
	r.removeWhile(func(v *string) bool { return *v == "new" })
	want("when the first ones are to go", 5)
	r.remove(5)
	r.removeWhile(func(*string) bool { return true })
	want("in the end")
}
