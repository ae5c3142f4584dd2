package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// event is a line of "go test -json"; see "go doc test2json".
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// result is the result of a test, or of a package as a whole.
type result struct {
	action string // pass, fail or skip; empty while it runs
	output strings.Builder
}

// suite is a package: its tests by name, and itself without one.
type suite map[string]*result

// report counts results and writes the summary.
type report struct {
	out    io.Writer
	suites map[string]suite
}

func newReport(out io.Writer) *report { return &report{out: out, suites: map[string]suite{}} }

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
		r.result(e).output.WriteString(e.Output)
	case "run":
		r.result(e)
	case "pass", "fail", "skip":
		r.result(e).action = e.Action
		if e.Test == "" {
			r.endSuite(e)
		}
	}
}

func (r *report) result(e *event) *result {
	s := r.suites[e.Package]
	if s == nil {
		s = suite{"": {}}
		r.suites[e.Package] = s
	}
	if s[e.Test] == nil {
		s[e.Test] = &result{}
	}
	return s[e.Test]
}

// outcome returns how a test ended. A test that did not end because the process crashed has failed. The
// command go test reports no end of benchmarks, which pass if the suite does.
func (s suite) outcome(test string) string {
	action := s[test].action
	switch {
	case action != "":
		return action
	case strings.HasPrefix(test, "Benchmark") && s[""].action == "pass":
		return "pass"
	}
	return "fail"
}

// tests returns the names of the tests that ended in a way, in order.
func (s suite) tests(outcome string) (names []string) {
	for _, test := range slices.Sorted(maps.Keys(s)) {
		if test != "" && s.outcome(test) == outcome {
			names = append(names, test)
		}
	}
	return names
}

// counts returns the numbers of tests. A suite that failed although none of its tests did, for example
// because it did not build, counts as one.
func (s suite) counts() (passed, failed, skipped int) {
	failed = len(s.tests("fail"))
	if failed == 0 && s[""].action == "fail" {
		failed = 1
	}
	return len(s.tests("pass")), failed, len(s.tests("skip"))
}

// endSuite prints the output of the failed and the skipped tests of a suite, and then its line.
func (r *report) endSuite(e *event) {
	if e.Action == "skip" { // the package has no tests
		return
	}
	s := r.suites[e.Package]
	for _, test := range slices.Concat(s.tests("fail"), s.tests("skip")) {
		r.print("%s", s[test].output.String())
	}
	if e.Action == "fail" {
		r.print("%s", s[""].output.String())
	}
	passed, failed, skipped := s.counts()
	r.print("%s  %s  %.1f s, %d passed, %d failed, %d skipped\n", e.Action, e.Package, e.Elapsed, passed, failed, skipped)
}

// close prints the totals. It returns an error if a test failed or none ran, and with ci also if one was skipped.
func (r *report) close(took time.Duration, ci bool) error {
	var passed, failed, skipped int
	for _, s := range r.suites {
		p, f, k := s.counts()
		passed, failed, skipped = passed+p, failed+f, skipped+k
	}
	r.print("took %.0f s\n%d passed, %d failed, %d skipped\n", took.Seconds(), passed, failed, skipped)
	switch {
	case failed > 0:
		return fmt.Errorf("%d tests failed", failed)
	case passed == 0:
		return errors.New("no tests ran")
	case ci && skipped > 0:
		return fmt.Errorf("skipped tests in CI: got %d, want none", skipped)
	}
	return nil
}

func (r *report) print(format string, args ...any) { _, _ = fmt.Fprintf(r.out, format, args...) }
