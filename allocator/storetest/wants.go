package storetest

import (
	"errors"
	"iter"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/allocator"
)

// WantClaims compares claims, whose order does not count.
func WantClaims(t testing.TB, want, got []allocator.Claim) {
	t.Helper()
	byKey := func(a, b allocator.Claim) int { return a.Key.Compare(b.Key) }
	want, got = slices.SortedFunc(slices.Values(want), byKey), slices.SortedFunc(slices.Values(got), byKey)
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b allocator.Claim) bool { return a == b })); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
}

// WantEnd checks that a watch yields one error, and nothing else.
func WantEnd(t testing.TB, watch iter.Seq2[allocator.Event, error], want error) {
	t.Helper()
	items := 0
	for e, err := range watch {
		if items++; !errors.Is(err, want) {
			t.Errorf("item of the watch: got event %+v, error %v, want %v", e, err, want)
		}
	}
	if items != 1 {
		t.Errorf("items of the watch: got %d items, want one", items)
	}
}
