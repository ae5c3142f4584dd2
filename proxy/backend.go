package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Backend programs a dataplane.
type Backend interface {
	// Apply makes the dataplane, which matches old, match new. It is
	// idempotent. The zero old means that nothing is known: Apply finds what
	// is there, keeps what fits, adds what lacks and removes the rest.
	//
	// An error that holds a [PortErrors] says that all was done but the named
	// ports, which are as in old. An error that holds [ErrDataplaneLost] says
	// that nothing is known any more. After any other error the dataplane
	// matches old as before, or the backend knows that it does not and looks at
	// what is there in the next Apply. Calls do not overlap.
	Apply(ctx context.Context, old, new Snapshot) error
	// Cleanup removes everything that this backend ever programs, and nothing
	// else. It needs no earlier Apply, and is done when there is nothing.
	Cleanup(ctx context.Context) error
}

// ErrUnsupported marks what a dataplane cannot do and will not do on another
// try: the kernel or a program lacks something.
var ErrUnsupported = errors.New("not supported here")

// ErrDataplaneLost marks that the dataplane no longer is what was applied last,
// for example because somebody else removed it. Apply from the zero [Snapshot]
// repairs it.
var ErrDataplaneLost = errors.New("dataplane is not as it was left")

// PortErrors is the error of an Apply that programmed all service ports but
// these.
type PortErrors map[ServicePortName]error

// Error names the ports, in name order, with what went wrong. It names a hundred at most:
// otherwise whoever can create Services could fill the logs.
func (e PortErrors) Error() string {
	const most = 100
	names := slices.SortedFunc(maps.Keys(e), ServicePortName.Compare)
	var b strings.Builder
	fmt.Fprintf(&b, "%d service ports not programmed", len(e))
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

// Unwrap gives the single errors, in name order.
func (e PortErrors) Unwrap() []error {
	var errs []error
	for _, n := range slices.SortedFunc(maps.Keys(e), ServicePortName.Compare) {
		errs = append(errs, e[n])
	}
	return errs
}
