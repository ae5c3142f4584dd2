package testenv

import (
	"fmt"
	"testing"
)

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
