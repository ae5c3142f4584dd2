package iptables

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

// stopError is how a program ended.
type stopError struct {
	// line is that of its input where it stopped, from 1; 0 if it did not say.
	line int
	said string
	kind error
	err  error
}

func (e *stopError) Error() string {
	text := "iptables: " + e.said
	if e.said == "" {
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

// blame finds out, by what a script says where the program stopped, whether that is
// because something is not there that should be. The legacy flavour does not tell:
// to it, a chain that is missing is a target that is missing, and of commands that
// find nothing it gives the line alone.
func (e *stopError) blame(s *script, n names) {
	switch at := s.line(e.line); {
	case strings.Contains(e.said, "Couldn't load target `"+n.prefix):
		e.kind = backends.ErrConflict
	case e.kind == nil && strings.HasPrefix(at, "-") && !strings.Contains(e.said, "rror occurred"):
		e.kind = backends.ErrConflict
	}
}

// explain puts the end of a program in terms that callers can act on.
func explain(err error, stderr []byte) error {
	e := &stopError{said: lastLines(stderr), err: err}
	if m := regexp.MustCompile(`(?:line:? )(\d+)`).FindSubmatch(stderr); m != nil {
		if line, err := strconv.Atoi(string(m[1])); err == nil { // too many digits are no line
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
			if strings.Contains(e.said, text) {
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
		e.kind = backends.ErrConflict // with what others have put there
	case has("Table does not exist", "do you need to insmod", "Couldn't load match", "Couldn't load target", "not supported"):
		e.kind = proxy.ErrUnsupported
	case has("does a matching rule exist", "No chain/target/match", "No such file or directory", "does not exist", "File exists"):
		e.kind = backends.ErrConflict
	}
	return e
}

// withoutRemovals gives what is left to do of a script that stopped at the removal
// of a chain, which is to be emptied instead, or all that are to be removed;
// nothing if that was not the reason.
func (s *script) withoutRemovals(err error, all bool) (rest []op, kept []string) {
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
			if o.Kind == backends.Remove && o.Key.rule == "" && (all || o.Key.chain == strings.TrimSpace(chain)) {
				o.Kind, o.Value, o.Key.back = backends.Replace, "", true
				kept = append(kept, o.Key.chain)
			}
			rest = append(rest, o)
		}
	}
	return rest, kept
}

// lastLines shortens what a program says to something that fits into an error.
func lastLines(b []byte) string {
	const limit = 400
	b = bytes.TrimSpace(b)
	if len(b) > limit {
		b = b[len(b)-limit:]
	}
	return string(bytes.Join(bytes.Fields(b), []byte(" ")))
}
