package script

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"os/exec"
	"time"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// Target is a [backends.Target] whose objects are text: the value of an object is what
// makes it, or makes it anew. Apply uses it from one goroutine at a time.
type Target[K backends.Key] struct {
	// Command is the program with its arguments. An end with status 1 says that it
	// has refused a script, and done nothing of it.
	Command []string
	// Begin stands before every script.
	Begin string
	// Remove gives the text that removes an object.
	Remove func(K) string
	// Anew are the keys of objects that hold all others, such as tables, and whose
	// values remove what was there before. They are made anew whenever it is not
	// known what is in the kernel, and with them everything.
	Anew []K
	// Missing, unless empty, is what the program says where something is not there
	// that should be: then somebody else has been at it. It is looked for in the first
	// 16 KiB of what the program says, which is all that errors hold of it.
	Missing string
}

// List implements [backends.Target]. It does not look: whatever there is gets a value
// that nobody wants.
func (t *Target[K]) List(context.Context) iter.Seq2[backends.Object[K, string], error] {
	return func(yield func(backends.Object[K, string], error) bool) {
		for _, k := range t.Anew {
			if !yield(backends.Object[K, string]{Key: k}, nil) {
				return
			}
		}
	}
}

// Commit implements [backends.Target] by one run of the program.
func (t *Target[K]) Commit(ctx context.Context, ops []backends.Op[K, string]) error {
	script := bytes.NewBufferString(t.Begin)
	for _, o := range ops {
		if o.Kind == backends.Remove {
			o.Value = t.Remove(o.Key)
		}
		script.WriteString(o.Value)
	}
	return t.run(ctx, script)
}

// lingering is how long the output of a program is waited for once it has ended: what
// it has started itself may hold it open.
const lingering = 2 * time.Second

func (t *Target[K]) run(ctx context.Context, script *bytes.Buffer) error {
	if len(t.Command) == 0 {
		return fmt.Errorf("script: %w: no program is named", proxy.ErrUnsupported)
	}
	var said head
	cmd := exec.CommandContext(ctx, t.Command[0], t.Command[1:]...) //nolint:gosec // it is the caller's
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = script, &said, &said, lingering
	err := cmd.Start()
	switch {
	case ctx.Err() != nil && err != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("script: %w: %w: %w", backends.ErrUnavailable, proxy.ErrUnsupported, err)
	}
	err = cmd.Wait()
	switch ended, _ := errors.AsType[*exec.ExitError](err); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		err = context.Cause(ctx) // it may have done everything before it was killed
	case ended == nil || ended.ExitCode() != 1:
	case t.Missing != "" && bytes.Contains(said.kept, []byte(t.Missing)):
		return fmt.Errorf("script: %w: %s: %w: %s", backends.ErrConflict, t.Command[0], err, said.kept)
	default:
		return fmt.Errorf("script: %s: %w: %s", t.Command[0], err, said.kept)
	}
	return fmt.Errorf("script: %w: %s: %w: %s", proxy.ErrDataplaneLost, t.Command[0], err, said.kept)
}

// head keeps the begin of what a program says: some say a line or more for each object,
// and errors go into logs.
type head struct{ kept []byte }

// longestAnswer is how much is kept.
const longestAnswer = 16 << 10

func (h *head) Write(p []byte) (int, error) {
	h.kept = append(h.kept, p[:min(len(p), longestAnswer-len(h.kept))]...)
	return len(p), nil
}
