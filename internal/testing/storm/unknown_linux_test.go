package storm

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// ending is a test that records why it ends.
type ending struct {
	testing.TB
	why string
}

func (f *ending) Helper() {}

func (f *ending) Fatalf(format string, args ...any) {
	f.why = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failureOf returns why a test ends; empty if it does not.
func failureOf(t *testing.T, test func(testing.TB)) string {
	t.Helper()
	f := &ending{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(f)
	}()
	<-done
	return f.why
}

// Values of variables that mean nothing end a storm before it begins, and the error says what is
// known.
func TestUnknownValuesOfVariables(t *testing.T) {
	for _, c := range []struct{ variable, text, want string }{
		{timeVariable, "5", "want a duration"},
		{timeVariable, "-5s", "want a duration"},
		{rateVariable, "0", "want a number from 1 on"},
		{withoutVariable, "tamper,errrors", `unknown name "errrors", want some of ["add" "descriptors"`},
		{folderVariable, "/nowhere", `want a folder or "-"`},
		{withoutVariable, "tamper,large", ""},
		{folderVariable, t.TempDir(), ""},
	} {
		t.Run(c.variable, func(t *testing.T) {
			t.Setenv(c.variable, c.text)
			got := failureOf(t, func(t testing.TB) { readOptions(t, "nftables") })
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("%s=%s: got %q, want %q", c.variable, c.text, got, c.want)
			}
		})
	}
}

// A history with a kind of step that does not exist is not played.
func TestUnknownSteps(t *testing.T) {
	_, err := readHistory(strings.NewReader("# backend: nftables\n{\"do\":\"calm\"}\n{\"do\":\"tampr\"}\n"))
	if want := `line 3: unknown kind of step "tampr", want one of ["add" "calm"`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want %s", err, want)
	}
}
