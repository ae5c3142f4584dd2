package xtables

import (
	"slices"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// The memory for a script is allocated once.
func TestTextSize(t *testing.T) {
	t.Parallel()
	r := testenv.Random(t)
	for range 50 {
		ops := slices.Concat(randomLoad(t, r)...)
		if got, most := len(scriptOf(ops).text), textSize(ops); got > most || got < most/2 {
			t.Fatalf("length of the script: got %d bytes, want at most %d, and at least half of that", got, most)
		}
	}
}
