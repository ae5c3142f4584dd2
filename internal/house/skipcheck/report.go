package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

// event is a line of "go test -json"; see "go doc test2json".
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// result is the result of a test, or of a package as a whole, which has no test name.
type result struct {
	test   string
	action string // pass, fail or skip; empty while it runs
	output strings.Builder
}

// suite is a package with its results in the order in which they began.
type suite struct {
	name    string
	results []*result
}

// report counts results and writes the summary.
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
			s.endBenchmarks(e.Action)
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

// endBenchmarks records that benchmarks passed, if the suite did: go test reports no end of theirs.
func (s *suite) endBenchmarks(action string) {
	for _, t := range s.results {
		if action == "pass" && t.action == "" && strings.HasPrefix(t.test, "Benchmark") {
			t.action = action
		}
	}
}

// with returns the tests that ended with an action. A test that did not end because the process
// crashed counts as failed.
func (s *suite) with(action string) []*result {
	var found []*result
	for _, t := range s.results {
		if t.test != "" && (t.action == action || t.action == "" && action == "fail") {
			found = append(found, t)
		}
	}
	return found
}

// failed counts failures. A suite that failed although none of its tests did, for example
// because it did not build, counts as one.
func (s *suite) failed() int {
	failed := len(s.with("fail"))
	if failed == 0 && s.result("").action == "fail" {
		return 1
	}
	return failed
}

// endSuite prints the output of the failed tests of a suite, and then its line.
func (r *report) endSuite(s *suite, e *event) {
	if e.Action == "skip" { // the package has no tests
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

// close prints for each reason how many tests were skipped and which, and the totals.
func (r *report) close(took time.Duration) {
	r.printSkipped()
	passed, failed, skipped := r.totals()
	r.print("took %.0f s\n%d passed, %d failed, %d skipped\n", took.Seconds(), passed, failed, skipped)
}

// printSkipped prints the reasons, the most frequent first.
func (r *report) printSkipped() {
	tests := map[string][]string{}
	for _, s := range r.suites {
		for _, t := range s.with("skip") {
			tests[t.reason()] = append(tests[t.reason()], path.Base(s.name)+"."+t.test)
		}
	}
	byCount := func(a, b string) int {
		return cmp.Or(cmp.Compare(len(tests[b]), len(tests[a])), cmp.Compare(a, b))
	}
	for i, reason := range slices.SortedFunc(maps.Keys(tests), byCount) {
		if i == 0 {
			r.print("skipped  reason\n")
		}
		r.print("%7d  %s (%s)\n", len(tests[reason]), reason, some(tests[reason]))
	}
}

// some names the first of many tests, or all of few.
func some(tests []string) string {
	const shown = 3
	if len(tests) <= shown {
		return strings.Join(tests, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(tests[:shown], ", "), len(tests)-shown)
}

// position is what the testing package writes before a message of a test.
var position = regexp.MustCompile(`^\S+\.go:\d+: `)

// reason returns the last message of a test, which is that of Skip.
func (t *result) reason() string {
	var words []string
	for line := range strings.Lines(t.output.String()) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		if at := position.FindString(line); at != "" {
			words, line = nil, line[len(at):]
		}
		words = append(words, line)
	}
	return cmp.Or(strings.Join(words, " "), "the test gives no reason")
}

// verdict returns an error if a test failed or none ran, and with ci also if one was
// skipped.
func (r *report) verdict(ci bool) error {
	switch passed, failed, skipped := r.totals(); {
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
