package testenv

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestCannotRun(t *testing.T) {
	for ci, want := range map[string]string{
		"":     "skipped: no luck",
		"true": "CI must be able to run this test: no luck",
	} {
		t.Setenv("CI", ci)
		Same(t, []string{want}, Record(t, func(t testing.TB) { CannotRun(t, "no luck") }), "CI=%q", ci)
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
	want := []string{`VIPKIT_SEED: got "seven", want a number from 0 to 18446744073709551615, as an earlier run logged it`}
	Same(t, want, Record(t, func(t testing.TB) { Random(t) }), "a seed that is not a number")
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
		said := Record(t, func(t testing.TB) { Growth(t, 8, func(n int) func() { return func() { spend(c.time(n)) } }) })
		if got := len(said) > 0; got != c.refused {
			t.Errorf("%s: got errors %q, want some: %t", c.name, said, c.refused)
		}
	}
}

func TestVariables(t *testing.T) {
	const variable = "VIPKIT_TEST_VARIABLE"
	flag := func(t testing.TB) any { return Flag(t, variable) }
	count := func(t testing.TB) any { return Count(t, variable, 7) }
	names := func(t testing.TB) any { return Names(t, variable, []string{"a", "b"}) }
	for _, test := range []struct {
		read       func(testing.TB) any
		text       string
		want, said string
	}{
		{flag, "", "false", ""},
		{flag, "1", "true", ""},
		{flag, "0", "", `VIPKIT_TEST_VARIABLE: got "0", want 1 or nothing`},
		{flag, "no", "", `VIPKIT_TEST_VARIABLE: got "no", want 1 or nothing`},
		{count, "", "7", ""},
		{count, "3", "3", ""},
		{count, "0", "", `VIPKIT_TEST_VARIABLE: got "0", want a number from 1 on`},
		{count, "many", "", `VIPKIT_TEST_VARIABLE: got "many", want a number from 1 on`},
		{names, "", "[]", ""},
		{names, "b", "[b]", ""},
		{names, "a, b", "[a b]", ""},
		{names, "a c", "", `VIPKIT_TEST_VARIABLE: unknown name "c", want some of ["a" "b"]`},
	} {
		t.Setenv(variable, test.text)
		got := ""
		said := Record(t, func(t testing.TB) { got = fmt.Sprint(test.read(t)) })
		if got != test.want || strings.Join(said, ";") != test.said {
			t.Errorf("%q: got %s, %q; want %s, %q", test.text, got, said, test.want, test.said)
		}
	}
}
