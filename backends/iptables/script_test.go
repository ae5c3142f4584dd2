package iptables

import (
	"slices"
	"testing"

	"github.com/vipkit/vipkit/internal/testenv"
)

// The memory for a script is taken once.
func TestTextSize(t *testing.T) {
	r := testenv.Random(t)
	for range 50 {
		ops := slices.Concat(randomWorld(t, r)...)
		if got, most := len(scriptOf(t, ops).text), textSize(ops); got > most || got < most/2 {
			t.Fatalf("a script of %d bytes was expected to have %d at most, and half of that", got, most)
		}
	}
}
