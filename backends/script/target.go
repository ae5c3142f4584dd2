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

// Target is a [backends.Target] whose objects are text: the value of an object is the script
// that adds it, or replaces it. Calls do not overlap.
type Target[K backends.Key] struct {
	// Command is the program with its arguments. Exit status 1 must mean that the program
	// refused the script, and did nothing of it.
	Command []string
	// Begin is the first text of every script.
	Begin string
	// Remove returns the text that removes an object.
	Remove func(K) string
	// Anew are the keys of objects that contain all others, such as tables, and whose
	// values remove the former ones. They, and with them all objects, are made again
	// whenever the state of the kernel is not known.
	Anew []K
	// Missing, unless empty, is the message of the program for an object that does not
	// exist: then another program has removed it. It is searched in the first 16 KiB of
	// the program's output, which is the part that errors have.
	Missing string
}

// List implements [backends.Target]. It does not read the kernel: it yields the objects of
// Anew with a value that no object has, so that they are replaced.
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
func (t *Target[K]) Commit(ctx context.Context, ops []backends.Op[K, string]) backends.Outcome {
	script := bytes.NewBufferString(t.Begin)
	for _, o := range ops {
		if o.Kind == backends.Remove {
			o.Value = t.Remove(o.Key)
		}
		script.WriteString(o.Value)
	}
	return backends.Stopped(0, len(ops), t.run(ctx, script))
}

// Abilities implements [backends.Target].
func (*Target[K]) Abilities() (none backends.Abilities[K, string]) { return none }

// lingering is how long run waits for the output of a program after it has ended: its child
// processes may keep the pipe open.
const lingering = 2 * time.Second

func (t *Target[K]) run(ctx context.Context, script *bytes.Buffer) error {
	if len(t.Command) == 0 {
		return fmt.Errorf("script: %w: Target.Command is empty", proxy.ErrUnsupported)
	}
	var output head
	cmd := exec.CommandContext(ctx, t.Command[0], t.Command[1:]...) //nolint:gosec // it is the caller's
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = script, &output, &output, lingering
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
		err = context.Cause(ctx) // the program may have done everything before it was killed
	case ended == nil || ended.ExitCode() != 1:
	case t.Missing != "" && bytes.Contains(output.kept, []byte(t.Missing)):
		return fmt.Errorf("script: %w: %s: %w: %s", backends.ErrConflict, t.Command[0], err, output.kept)
	default:
		return fmt.Errorf("script: %s: %w: %s", t.Command[0], err, output.kept)
	}
	return fmt.Errorf("script: %w: %s: %w: %s", proxy.ErrDataplaneLost, t.Command[0], err, output.kept)
}

// head keeps the start of a program's output: some programs write a line or more for each
// object, and errors are logged.
type head struct{ kept []byte }

// longestAnswer is how many bytes head keeps.
const longestAnswer = 16 << 10

func (h *head) Write(p []byte) (int, error) {
	h.kept = append(h.kept, p[:min(len(p), longestAnswer-len(h.kept))]...)
	return len(p), nil
}
