package xtables

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// stopError is the failure of a program.
type stopError struct {
	// line is the line of its input at which it stopped, from 1; 0 if it named none.
	line int
	// output is the end of the program's output, and kind the error that it means.
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

// markConflict sets the kind to ErrConflict if the program stopped because a chain or rule
// is missing. In the legacy flavour the message differs: a missing chain is called a missing
// target, and for a removal of a missing rule there is only the line.
func (e *stopError) markConflict(s *script, n Names) {
	switch at := s.line(e.line); {
	case strings.Contains(e.output, "Couldn't load target `"+n.Prefix):
		e.kind = backends.ErrConflict
	case e.kind == nil && strings.HasPrefix(at, "-") && !strings.Contains(e.output, "rror occurred"):
		e.kind = backends.ErrConflict
	}
}

// markExhausted sets the kind to ErrExhausted if the kernel refused a table of the legacy flavour,
// and the program named no reason. It never does; a lack of memory is the most common one. So
// that no working service port is removed for it, existing rules stay in effect.
func (e *stopError) markExhausted(s *script) {
	if e.kind == nil && strings.TrimSpace(s.line(e.line)) == "COMMIT" {
		e.kind = fmt.Errorf("%w: the kernel refused the table without a reason", backends.ErrExhausted)
	}
}

// denyUnsupported changes the kind to ErrConflict if it is ErrUnsupported although nothing is
// missing. The kernel also says "not supported" if a rule would lead to a rule of another
// program that is invalid in the hook.
func (e *stopError) denyUnsupported() {
	if errors.Is(e.kind, proxy.ErrUnsupported) {
		e.kind = backends.ErrConflict
	}
}

// explain turns the failure of a program into an error that callers can act on.
func explain(err error, stderr []byte) error {
	e := &stopError{output: lastLines(stderr), err: err}
	if m := regexp.MustCompile(`(?:line:? )(\d+)`).FindSubmatch(stderr); m != nil {
		if line, err := strconv.Atoi(string(m[1])); err == nil { // a number that is too large is not a line
			e.line = line
		}
	}
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
	case has("Parsing nftables rule failed", "CHAIN_ADD failed", "Too many links", "Too many levels"):
		e.kind = backends.ErrConflict // with rules of another program
	case has("Table does not exist", "do you need to insmod", "Couldn't load match", "Couldn't load target", "not supported"):
		e.kind = proxy.ErrUnsupported
	case has("does a matching rule exist", "No chain/target/match", "No such file or directory", "does not exist", "File exists"):
		e.kind = backends.ErrConflict
	}
	return e
}

// withoutRemovals returns the remaining operations of a script that stopped at the removal
// of a chain, and the chains that they keep: that chain, or if all is true, all chains that
// were to be removed. They empty these chains instead. It returns nothing if the script
// stopped for another reason.
func (s *script) withoutRemovals(err error, all bool) (rest []Op, kept []string) {
	stop, ok := errors.AsType[*stopError](err)
	if !ok {
		return nil, nil
	}
	chain, ok := strings.CutPrefix(s.line(stop.line), "-X ")
	if !ok {
		return nil, nil
	}
	for _, part := range s.sections {
		if part.end < stop.line {
			continue
		}
		for _, o := range part.ops {
			if o.Kind == backends.Remove && o.Key.Rule == "" && (all || o.Key.Chain == strings.TrimSpace(chain)) {
				kept = append(kept, o.Key.Chain)
				rest = appendEmptying(rest, o)
			} else {
				rest = append(rest, o)
			}
		}
	}
	return rest, kept
}

// appendEmptying appends the operation that empties a chain instead of removing it. It appends
// nothing if the chain is empty already: otherwise each resync would write something for as
// long as a foreign rule jumps to the chain.
func appendEmptying(ops []Op, removal Op) []Op {
	if removal.Value == "" {
		return ops
	}
	removal.Kind, removal.Value, removal.Key.Back = backends.Replace, "", true
	return append(ops, removal)
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
