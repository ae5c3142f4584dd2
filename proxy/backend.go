package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Backend programs a dataplane. A type that embeds a Backend keeps everything that it can do.
type Backend interface {
	// Apply makes the dataplane, which matches old, match new. It is
	// idempotent. The zero old means that nothing is known: Apply lists the
	// dataplane, keeps what fits, adds what is missing and removes the rest.
	//
	// An error that wraps a [PortErrors] says that Apply did everything but the
	// named ports, which are as in old. A dataplane without transactions may have a part of
	// such a port as in new; the backend remembers that for the next Apply. An error that wraps [ErrDataplaneLost] says
	// that the state of the dataplane is unknown. After any other error the
	// dataplane matches old as before, or the backend knows that it does not and
	// lists the dataplane in the next Apply. [Snapshot.Achieved] states the same in
	// code. Calls do not overlap.
	Apply(ctx context.Context, old, new Snapshot) error
	// Cleanup removes everything that this backend ever programs, and nothing
	// else. It needs no earlier Apply, and succeeds if there is nothing to remove.
	Cleanup(ctx context.Context) error
	// Abilities returns what else the backend can do. It returns the same at each call, and may be
	// called from any goroutine.
	Abilities() Abilities
	// Close releases the resources of the process, such as sockets and timers, and leaves what is
	// programmed; only Cleanup removes that. The code that made the Backend calls Close once, when no
	// other call runs or follows: after [Runner.Run] has returned, after a Cleanup, and also if neither
	// was called.
	Close() error
}

// ErrUnsupported marks what a dataplane cannot do, also not in a retry: the kernel
// or a program lacks a feature. It wraps [errors.ErrUnsupported].
var ErrUnsupported = fmt.Errorf("%w on this system", errors.ErrUnsupported)

// ErrDataplaneLost marks that the state of the dataplane is unknown, for example because
// another program removed it. Apply from the zero [Snapshot] repairs it.
var ErrDataplaneLost = errors.New("dataplane state unknown")

// PortErrors is the error of an Apply that programmed all service ports except
// these.
type PortErrors map[ServicePortName]error

// Error names the ports, in name order, with their errors. It names a hundred at most:
// otherwise users who create Services could fill the logs.
func (e PortErrors) Error() string {
	const most = 100
	names := slices.SortedFunc(maps.Keys(e), ServicePortName.Compare)
	var b strings.Builder
	fmt.Fprintf(&b, "%s not programmed", countPorts(len(e)))
	for i, n := range names {
		if i == most {
			fmt.Fprintf(&b, "; and %d more", len(names)-most)
			break
		}
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		fmt.Fprintf(&b, "%s%s: %v", sep, n, e[n])
	}
	return b.String()
}

// countPorts returns a number of service ports in words.
func countPorts(n int) string {
	if n == 1 {
		return "1 service port"
	}
	return fmt.Sprintf("%d service ports", n)
}

// Unwrap returns the errors of the ports, in name order.
func (e PortErrors) Unwrap() []error {
	var errs []error
	for _, n := range slices.SortedFunc(maps.Keys(e), ServicePortName.Compare) {
		errs = append(errs, e[n])
	}
	return errs
}

// Problems returns the errors of the ports as problems of their Services, in name order.
func (e PortErrors) Problems() []*Problem {
	all := make([]*Problem, 0, len(e))
	for _, n := range slices.SortedFunc(maps.Keys(e), ServicePortName.Compare) {
		all = append(all, &Problem{Kind: "Service", NamespacedName: n.NamespacedName, Field: "spec.ports", Reason: NotProgrammed, Err: fmt.Errorf("%v: %w", n, e[n])})
	}
	return all
}
