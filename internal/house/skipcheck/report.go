package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// event is a line of "go test -json"; see "go doc test2json".
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// result is what is known of a test, or of a package as a whole, which has no
// test name.
type result struct {
	test   string
	action string // pass, fail or skip; empty as long as it runs
	output strings.Builder
}

// suite is a package with its results in the order in which they began.
type suite struct {
	name    string
	results []*result
}

// report counts results and writes what a person wants to read.
type report struct {
	out    io.Writer
	suites []*suite
}

func newReport(out io.Writer) *report { return &report{out: out} }

func (r *report) read(events io.Reader) error {
	for decoder := json.NewDecoder(events); ; {
		var e event
		switch err := decoder.Decode(&e); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("reading the events of go test: %w", err)
		}
		r.add(&e)
	}
}

func (r *report) add(e *event) {
	switch e.Action {
	case "build-output":
		r.print("%s", e.Output)
	case "output":
		r.suite(e.Package).result(e.Test).output.WriteString(e.Output)
	case "run":
		r.suite(e.Package).result(e.Test)
	case "pass", "fail", "skip":
		s := r.suite(e.Package)
		s.result(e.Test).action = e.Action
		if e.Test == "" {
			r.endSuite(s, e)
		}
	}
}

func (r *report) suite(name string) *suite {
	for _, s := range slices.Backward(r.suites) {
		if s.name == name {
			return s
		}
	}
	s := &suite{name: name}
	r.suites = append(r.suites, s)
	return s
}

func (s *suite) result(test string) *result {
	for _, t := range slices.Backward(s.results) {
		if t.test == test {
			return t
		}
	}
	t := &result{test: test}
	s.results = append(s.results, t)
	return t
}

// with gives the tests that ended with an action. A test without an end, which
// there is after a crash, failed.
func (s *suite) with(action string) []*result {
	var found []*result
	for _, t := range s.results {
		if t.test != "" && (t.action == action || t.action == "" && action == "fail") {
			found = append(found, t)
		}
	}
	return found
}

// failed counts failures. A suite that failed though none of its tests did,
// because it did not build for example, counts as one.
func (s *suite) failed() int {
	failed := len(s.with("fail"))
	if failed == 0 && s.result("").action == "fail" {
		return 1
	}
	return failed
}

// endSuite prints the line of a suite, below the output of what failed in it.
func (r *report) endSuite(s *suite, e *event) {
	if e.Action == "skip" { // there are no tests
		return
	}
	for _, t := range s.with("fail") {
		r.print("%s", t.output.String())
	}
	if e.Action == "fail" {
		r.print("%s", s.result("").output.String())
	}
	r.print("%s  %s  %.1f s, %d passed, %d failed, %d skipped\n", e.Action, s.name, e.Elapsed,
		len(s.with("pass")), s.failed(), len(s.with("skip")))
}

func (r *report) totals() (passed, failed, skipped int) {
	for _, s := range r.suites {
		passed += len(s.with("pass"))
		failed += s.failed()
		skipped += len(s.with("skip"))
	}
	return passed, failed, skipped
}

// close prints skipped tests with their reasons, and the totals.
func (r *report) close(took time.Duration) {
	for _, s := range r.suites {
		for _, t := range s.with("skip") {
			r.print("skipped  %s %s: %s\n", s.name, t.test, t.reason())
		}
	}
	passed, failed, skipped := r.totals()
	r.print("took %.0f s\n%d passed, %d failed, %d skipped\n", took.Seconds(), passed, failed, skipped)
}

// reason gives the output without the frame that the testing package puts
// around it.
func (t *result) reason() string {
	var words []string
	for line := range strings.Lines(t.output.String()) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			words = append(words, line)
		}
	}
	return strings.Join(words, " ")
}

// verdict judges a run; where ci is set it wants that nothing was skipped.
func (r *report) verdict(ci bool) error {
	switch passed, failed, skipped := r.totals(); {
	case failed > 0:
		return fmt.Errorf("%d tests failed", failed)
	case passed == 0:
		return errors.New("no tests ran")
	case ci && skipped > 0:
		return fmt.Errorf("CI must not skip tests, and %d were", skipped)
	}
	return nil
}

func (r *report) print(format string, args ...any) { _, _ = fmt.Fprintf(r.out, format, args...) }
