package testenv

import (
	"fmt"
	"testing"
	"time"
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

// TestGrowth measures operations whose time is known.
func TestGrowth(t *testing.T) {
	spend := func(d time.Duration) {
		for elapsed := ProcessorTime(t); elapsed() < d; {
		}
	}
	for _, c := range []struct {
		name    string
		time    func(n int) time.Duration
		refused bool
	}{
		{"linear", func(n int) time.Duration { return time.Duration(n) * time.Millisecond }, false},
		{"square", func(n int) time.Duration { return time.Duration(n*n) * time.Millisecond / 8 }, true},
	} {
		e := &ending{TB: t}
		Growth(e, 8, func(n int) func() { return func() { spend(c.time(n)) } })
		if got := len(e.said) > 0; got != c.refused {
			t.Errorf("%s: got errors %q, want some: %t", c.name, e.said, c.refused)
		}
	}
}

func TestVariables(t *testing.T) {
	const variable = "VIPKIT_TEST_VARIABLE"
	flag := func(t testing.TB) any { return Flag(t, variable) }
	count := func(t testing.TB) any { return Count(t, variable, 7) }
	names := func(t testing.TB) any { return Names(t, variable, []string{"a", "b"}) }
	for _, test := range []struct {
		read        func(testing.TB) any
		text        string
		want, ended string
	}{
		{flag, "", "false", ""},
		{flag, "1", "true", ""},
		{flag, "0", "false", `failed: VIPKIT_TEST_VARIABLE: got "0", want 1 or nothing`},
		{flag, "no", "false", `failed: VIPKIT_TEST_VARIABLE: got "no", want 1 or nothing`},
		{count, "", "7", ""},
		{count, "3", "3", ""},
		{count, "0", "0", `failed: VIPKIT_TEST_VARIABLE: got "0", want a number from 1 on`},
		{count, "many", "0", `failed: VIPKIT_TEST_VARIABLE: got "many", want a number from 1 on`},
		{names, "", "[]", ""},
		{names, "b", "[b]", ""},
		{names, "a, b", "[a b]", ""},
		{names, "a c", "[a c]", `failed: VIPKIT_TEST_VARIABLE: unknown name "c", want some of ["a" "b"]`},
	} {
		t.Setenv(variable, test.text)
		r := &recorder{TB: t}
		if got := fmt.Sprint(test.read(r)); got != test.want || r.ended != test.ended {
			t.Errorf("%q: got %s, %s; want %s, %s", test.text, got, r.ended, test.want, test.ended)
		}
	}
}
