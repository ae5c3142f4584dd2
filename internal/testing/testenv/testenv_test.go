package testenv

import (
	"fmt"
	"testing"
)

// recorder is a test that records Skip and Fatalf, and continues.
type recorder struct {
	testing.TB
	ended string
}

func (r *recorder) Helper()                   {}
func (r *recorder) Skip(args ...any)          { r.end("skipped: " + fmt.Sprint(args...)) }
func (r *recorder) Fatalf(f string, a ...any) { r.end("failed: " + fmt.Sprintf(f, a...)) }

func (r *recorder) end(how string) {
	if r.ended == "" {
		r.ended = how
	}
}

func TestCannotRun(t *testing.T) {
	for ci, want := range map[string]string{
		"":     "skipped: no luck",
		"true": "failed: CI must be able to run this test: no luck",
	} {
		t.Setenv("CI", ci)
		r := &recorder{TB: t}
		CannotRun(r, "no luck")
		if r.ended != want {
			t.Errorf("CI=%q: got %q, want %q", ci, r.ended, want)
		}
	}
}

func TestRandomIsRepeated(t *testing.T) {
	t.Setenv(SeedVariable, "7")
	if a, b := Random(t).Uint64(), Random(t).Uint64(); a != b {
		t.Errorf("with one seed: got %d and %d, want the same", a, b)
	}
	t.Setenv(SeedVariable, "")
	if a, b := Random(t).Uint64(), Random(t).Uint64(); a == b {
		t.Errorf("without a seed: got %d twice, want different numbers", a)
	}
	t.Setenv(SeedVariable, "seven")
	r := &recorder{TB: t}
	Random(r)
	if want := `failed: VIPKIT_SEED: got "seven", want a number from 0 to 18446744073709551615, as an earlier run logged it`; r.ended != want {
		t.Errorf("a seed that is not a number: got %q, want %q", r.ended, want)
	}
}
