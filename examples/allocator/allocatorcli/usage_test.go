package allocatorcli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/repair"
)

// call runs the program once.
func (p Program) call(t *testing.T, args ...string) (status int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	status = p.Run(t.Context(), args, Streams{strings.NewReader(""), &o, &e})
	return status, o.String(), e.String()
}

// TestUsage checks that the usage has a line for each command, and that its examples work.
func TestUsage(t *testing.T) {
	status, _, usage := program().call(t, "-h")
	if status != 0 {
		t.Errorf("status of -h: got %d, want 0", status)
	}
	for _, c := range commands() {
		if !strings.Contains(usage, "\n  "+c.form+" ") || !strings.Contains(usage, c.about+"\n") {
			t.Errorf("usage: got\n%s\nwant also %q and %q", usage, c.form, c.about)
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
			t.Errorf("%s: got status %d, %q, want 0 and no error", line, status, errs)
		}
		last = out
	}
	if got := strings.Count(last, "\n"); got != 3 {
		t.Errorf("output of the example: got %q, want an address and two ports", last)
	}
}

func TestAdvice(t *testing.T) {
	a := &app{ranges: []allocator.Config{{FirstPort: 1, LastPort: 9}, {FirstPort: 20, LastPort: 29}}, store: &crashing{}}
	for _, c := range []struct {
		err  error
		want string
	}{
		{allocator.ErrNoMap, "The commands repair, import and create make one.\n"},
		{repair.ErrNoOwners, "If the file is right, run repair -force FILE.\n"},
		{&repair.TooManyError{Removals: 5, Most: 3}, "If the file is right, run repair -force FILE.\n"},
		{&allocator.RangeError{Reason: allocator.ErrFull, Kind: allocator.IPv4}, "The ranges are 1-9, 20-29; set others with -range.\n"},
		{&allocator.RangeError{Reason: allocator.ErrFull, Range: "1-9"}, ""},
		{errors.New("other"), ""},
	} {
		if got := a.advice(c.err); got != c.want {
			t.Errorf("advice about %q: got %q, want %q", c.err, got, c.want)
		}
	}
	a.store = allocator.NewMemory(allocator.State{}, nil)
	if got := a.advice(allocator.ErrNoMap); got != "" {
		t.Errorf("advice for a store without maps: got %q, want none", got)
	}
}

// unresponsive is a store that does not reply.
type unresponsive struct{ *allocator.Memory }

func (unresponsive) Load(ctx context.Context) (allocator.State, error) {
	<-ctx.Done()
	return allocator.State{}, ctx.Err()
}

// TestNoReply checks that the error names the store that did not reply, and the time.
func TestNoReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := Program{Name: "test", Kinds: []Kind{{
			Name: "unresponsive", CommandTime: 30 * time.Second,
			Open: func(_ context.Context, _ string, ranges []allocator.Config) (Opened, error) {
				return Opened{Store: unresponsive{allocator.NewMemory(allocator.State{}, nil)}, Ranges: ranges}, nil
			},
		}}}
		status, _, errs := p.call(t, "-range", "1-9", "show")
		if want := "unresponsive did not reply within 30s: "; status != 1 || !strings.Contains(errs, want) {
			t.Errorf("got status %d, %q, want 1 and %q", status, errs, want)
		}
	})
}
