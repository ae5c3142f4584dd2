package allocatorcli

import (
	"bytes"
	"strings"
	"testing"
)

// call runs the program once.
func (p Program) call(t *testing.T, args ...string) (status int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	status = p.Run(t.Context(), args, Streams{strings.NewReader(""), &o, &e})
	return status, o.String(), e.String()
}

// TestUsage wants a line for each command, and examples that work as they stand there.
func TestUsage(t *testing.T) {
	status, _, usage := program().call(t, "-h")
	if status != 0 {
		t.Errorf("-h: status %d, want 0", status)
	}
	for _, c := range commands() {
		if !strings.Contains(usage, "\n  "+c.form+" ") || !strings.Contains(usage, c.about+"\n") {
			t.Errorf("the usage lacks %q and %q:\n%s", c.form, c.about, usage)
		}
	}
	_, examples, _ := strings.Cut(usage, "Example:\n")
	examples, _, _ = strings.Cut(examples, "\n\n")
	t.Chdir(t.TempDir())
	last := ""
	for line := range strings.Lines(examples) {
		words := strings.Fields(line)
		status, out, errs := program().call(t, words[1:]...)
		if words[0] != "test" || status != 0 || errs != "" {
			t.Errorf("%s: status %d, %q", line, status, errs)
		}
		last = out
	}
	if got := strings.Count(last, "\n"); got != 3 {
		t.Errorf("the example has given %q, want an address and two ports", last)
	}
}
