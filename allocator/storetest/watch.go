package storetest

import (
	"errors"
	"iter"
	"testing"

	"github.com/vipkit/vipkit/allocator"
)

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
