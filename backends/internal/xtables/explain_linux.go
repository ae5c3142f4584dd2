package xtables

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// stopError is the failure of a program. If isRefusal is true, the program refused what it was asked for, and
// may do something else.
type stopError struct {
	error
	isRefusal bool
}

func (e *stopError) Unwrap() error { return e.error }

// explain turns the failure of a program into an error that callers can act on. Only what no
// smaller or other input could avoid is told apart.
func explain(err error, stderr []byte) error {
	output := lastLines(stderr)
	has := func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(output, text) })
	}
	if output == "" {
		output = "no output"
	}
	stop := func(kind error) error {
		return &stopError{error: fmt.Errorf("iptables: %s: %w (%w)", output, err, kind)}
	}
	exit, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case !exited || !exit.Exited():
		return stop(proxy.ErrDataplaneLost)
	case has("holding the xtables lock"):
		return stop(fmt.Errorf("%w: %w", backends.ErrUnavailable, ErrLocked))
	case has("Cannot allocate memory", "Memory allocation problem", "No buffer space"):
		return stop(fmt.Errorf("%w: the system is short of memory", backends.ErrUnavailable))
	case has("Permission denied", "must be root", "Operation not permitted"):
		return stop(fmt.Errorf("%w: %w: CAP_NET_ADMIN is needed in the network namespace, and CAP_NET_RAW for iptables-legacy", backends.ErrUnavailable, proxy.ErrUnsupported))
	}
	return &stopError{fmt.Errorf("iptables: %s: %w", output, err), true}
}

// isRefusal reports whether a program refused what it was asked for, and may do something else.
func isRefusal(err error) bool {
	stop, stopped := errors.AsType[*stopError](err)
	return stopped && stop.isRefusal
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
