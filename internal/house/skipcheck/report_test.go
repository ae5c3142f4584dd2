package main

import (
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// line returns an event in the format of go test.
func line(action, pkg, test, output string) string {
	return `{"Action":"` + action + `","Package":"` + pkg + `","Test":"` + test + `","Output":"` + output + `"}` + "\n"
}

func TestReport(t *testing.T) { //nolint:funlen // a table
	passes := line("run", "p", "TestA", "") + line("pass", "p", "TestA", "")
	skips := line("run", "p", "TestS", "") + line("output", "p", "TestS", `    s_test.go:7: needs root\n--- SKIP: TestS\n`) + line("skip", "p", "TestS", "")
	for name, c := range map[string]struct {
		events     string
		want       []string
		here, inCI string // errors
	}{
		"all pass": {
			events: passes + line("pass", "p", "", ""),
			want:   []string{"pass  p  0.0 s, 1 passed, 0 failed, 0 skipped\n", "\n1 passed, 0 failed, 0 skipped\n"},
		},
		"a skip": {
			events: passes + skips + line("pass", "p", "", ""),
			want:   []string{"    s_test.go:7: needs root\n--- SKIP: TestS", "\n1 passed, 0 failed, 1 skipped\n"},
			inCI:   "skipped tests in CI: got 1, want none",
		},
		"benchmarks have no end": {
			events: line("run", "p", "BenchmarkA", "") + line("run", "p", "BenchmarkA/n=1", "") + line("pass", "p", "", ""),
			want:   []string{"pass  p  0.0 s, 2 passed, 0 failed, 0 skipped\n"},
		},
		"a test without an end fails": {
			events: line("run", "p", "TestA", "") + line("run", "p", "BenchmarkA", "") + line("pass", "p", "", ""),
			want:   []string{"1 passed, 1 failed, 0 skipped\n"},
			here:   "1 tests failed",
			inCI:   "1 tests failed",
		},
		"a benchmark of a crash fails": {
			events: passes + line("run", "p", "BenchmarkA", "") + line("fail", "p", "", ""),
			want:   []string{"1 passed, 1 failed, 0 skipped\n"},
			here:   "1 tests failed",
			inCI:   "1 tests failed",
		},
		"a package without tests is not a skip": {
			events: passes + line("pass", "p", "", "") + line("skip", "q", "", ""),
			want:   []string{"\n1 passed, 0 failed, 0 skipped\n"},
		},
		"a failure": {
			events: passes + line("output", "p", "TestF", `got 1, want 2\n`) + line("fail", "p", "TestF", "") + line("fail", "p", "", ""),
			want:   []string{"got 1, want 2\n", "\n1 passed, 1 failed, 0 skipped\n"},
			here:   "1 tests failed", inCI: "1 tests failed",
		},
		"a package that does not build": {
			events: passes + line("pass", "p", "", "") + line("build-output", "", "", `x.go:1: oh\n`) +
				line("output", "q", "", `FAIL q [build failed]\n`) + line("fail", "q", "", ""),
			want: []string{"x.go:1: oh\n", "FAIL q [build failed]\n", "\n1 passed, 1 failed, 0 skipped\n"},
			here: "1 tests failed", inCI: "1 tests failed",
		},
		"a crash": {
			events: passes + line("run", "p", "TestC", "") + line("output", "p", "TestC", `panic: oh\n`) + line("fail", "p", "", ""),
			want:   []string{"panic: oh\n", "\n1 passed, 1 failed, 0 skipped\n"},
			here:   "1 tests failed", inCI: "1 tests failed",
		},
		"killed": {
			events: passes + line("run", "p", "TestC", ""),
			want:   []string{"\n1 passed, 1 failed, 0 skipped\n"},
			here:   "1 tests failed", inCI: "1 tests failed",
		},
		"nothing": {
			want: []string{"\n0 passed, 0 failed, 0 skipped\n"},
			here: "no tests ran", inCI: "no tests ran",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for ci, wantErr := range map[bool]string{false: c.here, true: c.inCI} {
				var out strings.Builder
				r := newReport(&out)
				testenv.NoError(t, r.read(strings.NewReader(c.events)))
				got := ""
				if err := r.close(time.Second, ci); err != nil {
					got = err.Error()
				}
				testenv.Same(t, wantErr, got, "error, in CI: %t", ci)
				for _, want := range c.want {
					if !strings.Contains(out.String(), want) {
						t.Errorf("want %q in\n%s", want, out.String())
					}
				}
			}
		})
	}
}

func TestReadRefusesOtherLines(t *testing.T) {
	if err := newReport(&strings.Builder{}).read(strings.NewReader("panic: oh\n")); err == nil {
		t.Error("a line that is not JSON: got no error, want one")
	}
}
