package storetest

import (
	"errors"
	"iter"
	"testing"

	"github.com/vipkit/vipkit/allocator"
)

// WantEnd wants a watch to tell an error, and nothing else.
func WantEnd(t testing.TB, watch iter.Seq2[allocator.Event, error], want error) {
	t.Helper()
	told := 0
	for e, err := range watch {
		if told++; !errors.Is(err, want) {
			t.Errorf("the watch told event %+v and error %v, want %v", e, err, want)
		}
	}
	if told != 1 {
		t.Errorf("the watch told something %d times, want once", told)
	}
}
