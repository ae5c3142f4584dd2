package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os/exec"
	"strings"
	"time"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// kernel is the kernel edge: nft, which carries out a script as one transaction.
type kernel struct{ command []string }

func newKernel(command ...string) *kernel { return &kernel{command} }

// Abilities implements [backends.Target].
func (*kernel) Abilities() backends.TargetAbilities[key, string] {
	return backends.TargetAbilities[key, string]{Check: check}
}

// check refuses service ports that cannot be served.
func check(_ backends.Env, port *proxy.ServicePort) error {
	if port.Affinity.Enabled() {
		return fmt.Errorf("session affinity is not supported")
	}
	return nil
}

// List implements [backends.Target]. It reads nothing: it yields the tables with a value that render
// never gives, so that they are replaced, and with them everything.
func (*kernel) List(context.Context) iter.Seq2[object, error] {
	return func(yield func(object, error) bool) {
		_ = yield(object{Key: "table ip custom"}, nil) && yield(object{Key: "table ip6 custom"}, nil)
	}
}

// Commit implements [backends.Target] by one run of nft.
func (k *kernel) Commit(ctx context.Context, ops []backends.Op[key, string]) backends.Outcome {
	var script strings.Builder
	script.WriteString("add table ip custom\nadd table ip6 custom\n") // so that deleting a table never fails
	for _, o := range ops {
		if o.Kind == backends.Remove {
			o.Value = "delete " + string(o.Key) + "\n"
		}
		script.WriteString(o.Value)
	}
	return backends.PartialOutcome(0, len(ops), k.run(ctx, script.String()))
}

// run runs nft. Its exit status 1 means that it refused the script, and did nothing of it.
func (k *kernel) run(ctx context.Context, script string) error {
	cmd := exec.CommandContext(ctx, k.command[0], k.command[1:]...) //nolint:gosec // it is nft
	cmd.Stdin, cmd.WaitDelay = strings.NewReader(script), time.Second
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	const longest = 16 << 10 // nft has a line or more for each refused object
	err = fmt.Errorf("%s: %w: %s", k.command[0], err, out[:min(len(out), longest)])
	switch ended, _ := errors.AsType[*exec.ExitError](err); {
	case cmd.Process == nil && ctx.Err() == nil:
		return fmt.Errorf("%w: %w: %w", backends.ErrUnavailable, proxy.ErrUnsupported, err)
	case cmd.Process == nil:
		return err
	case ended == nil || ended.ExitCode() != 1: // nft may have done everything before it was killed
		return fmt.Errorf("%w: %w", proxy.ErrDataplaneLost, err)
	case strings.Contains(string(out), "No such file or directory"):
		return fmt.Errorf("%w: %w", backends.ErrConflict, err) // another program has removed the object
	}
	return err
}
