package testenv

import (
	"fmt"
	"testing"
)

// recorder is a test that notes how it ended, and does not end.
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
			t.Errorf("with CI=%q the test %s, want %s", ci, r.ended, want)
		}
	}
}

func TestRandomIsRepeated(t *testing.T) {
	t.Setenv(SeedVariable, "7")
	if a, b := Random(t).Uint64(), Random(t).Uint64(); a != b {
		t.Errorf("the same seed gave %d and %d", a, b)
	}
	t.Setenv(SeedVariable, "")
	if a, b := Random(t).Uint64(), Random(t).Uint64(); a == b {
		t.Errorf("without a seed two sequences begin with %d", a)
	}
	t.Setenv(SeedVariable, "seven")
	r := &recorder{TB: t}
	Random(r)
	if want := `failed: VIPKIT_SEED: strconv.ParseUint: parsing "seven": invalid syntax`; r.ended != want {
		t.Errorf("a seed that is no number: %q, want %q", r.ended, want)
	}
}
