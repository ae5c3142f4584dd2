package storetest

import (
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
