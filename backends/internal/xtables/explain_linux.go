package xtables

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// stopError is the failure of a program.
type stopError struct {
	// output is the end of the program's output, and kind the error that it means: nil if the
	// program refuses what it was asked for.
	output string
	kind   error
	err    error
}

func (e *stopError) Error() string {
	text := "iptables: " + e.output
	if e.output == "" {
		text += e.err.Error()
	}
	if e.kind != nil {
		text += " (" + e.kind.Error() + ")"
	}
	return text
}

func (e *stopError) Unwrap() []error {
	if e.kind == nil {
		return []error{e.err}
	}
	return []error{e.kind, e.err}
}

// explain turns the failure of a program into an error that callers can act on. Only what no
// smaller or other input could avoid is told apart.
func explain(err error, stderr []byte) error {
	e := &stopError{output: lastLines(stderr), err: err}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !exit.Exited() {
		e.kind = proxy.ErrDataplaneLost
		return e
	}
	has := func(texts ...string) bool {
		for _, text := range texts {
			if strings.Contains(e.output, text) {
				return true
			}
		}
		return false
	}
	switch {
	case has("holding the xtables lock"):
		e.kind = fmt.Errorf("%w: %w", backends.ErrUnavailable, ErrLocked)
	case has("Cannot allocate memory", "Memory allocation problem", "No buffer space"):
		e.kind = fmt.Errorf("%w: the system is short of memory", backends.ErrUnavailable)
	case has("Permission denied", "must be root", "Operation not permitted"):
		e.kind = fmt.Errorf("%w: %w: CAP_NET_ADMIN is needed in the network namespace, and CAP_NET_RAW for iptables-legacy", backends.ErrUnavailable, proxy.ErrUnsupported)
	}
	return e
}

// isRefusal reports whether a program refused what it was asked for, and may do something else.
func isRefusal(err error) bool {
	stop, stopped := errors.AsType[*stopError](err)
	return stopped && stop.kind == nil
}

// isKernels reports whether it was the kernel that refused something, in the legacy flavour. It names
// no reason; a lack of memory is the most common one.
func isKernels(err error) bool {
	exit, exited := errors.AsType[*exec.ExitError](err)
	return exited && exit.ExitCode() == 1 && isRefusal(err)
}

// lastLines returns the end of a program's output, short enough for an error.
func lastLines(b []byte) string {
	const limit = 400
	b = bytes.TrimSpace(b)
	if len(b) > limit {
		b = b[len(b)-limit:]
	}
	return string(bytes.Join(bytes.Fields(b), []byte(" ")))
}
