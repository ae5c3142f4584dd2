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

// skip returns the events of a test of the package p that is skipped for a reason.
func skip(test, reason string) string {
	return line("run", "p", test, "") +
		line("output", "p", test, `=== RUN   `+test+`\n`) +
		line("output", "p", test, `    s_test.go:7: `+reason+`\n`) +
		line("output", "p", test, `--- SKIP: `+test+` (0.00s)\n`) +
		line("skip", "p", test, "")
}

func TestReport(t *testing.T) {
	passes := line("run", "p", "TestA", "") + line("pass", "p", "TestA", "")
	skips := skip("TestS", "needs root")
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
			want:   []string{"\nskipped  reason\n      1  needs root (p.TestS)\n", "\n1 passed, 0 failed, 1 skipped\n"},
			inCI:   "skipped tests in CI: got 1, want none",
		},
		"skips of the same reason share a line": {
			events: passes + skip("TestK", "no nft") + skips + skip("TestL", "no nft") + skip("TestM", "no nft") + skip("TestN", "no nft") +
				line("pass", "p", "", ""),
			want: []string{"\nskipped  reason\n      4  no nft (p.TestK, p.TestL, p.TestM and 1 more)\n      1  needs root (p.TestS)\n"},
			inCI: "skipped tests in CI: got 5, want none",
		},
		"the reason is the last message, of any number of lines": {
			events: passes + line("output", "p", "TestS", `    s.go:1: VIPKIT_SEED=1 repeats this test\n`) + skip("TestS", `two\n        lines`),
			want:   []string{"      1  two lines (p.TestS)\n"},
			inCI:   "skipped tests in CI: got 1, want none",
		},
		"a skip without a reason": {
			events: passes + line("run", "p", "TestS", "") + line("skip", "p", "TestS", ""),
			want:   []string{"      1  the test gives no reason (p.TestS)\n"},
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
			var out strings.Builder
			r := newReport(&out)
			testenv.NoError(t, r.read(strings.NewReader(c.events)))
			r.close(time.Second)
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("want %q in\n%s", want, out.String())
				}
			}
			checkError(t, "here", r.verdict(false), c.here)
			checkError(t, "in CI", r.verdict(true), c.inCI)
		})
	}
}

func checkError(t *testing.T, where string, err error, want string) {
	t.Helper()
	got := ""
	if err != nil {
		got = err.Error()
	}
	if got != want {
		t.Errorf("%s: got error %q, want %q", where, got, want)
	}
}

func TestReadRefusesOtherLines(t *testing.T) {
	if err := newReport(&strings.Builder{}).read(strings.NewReader("panic: oh\n")); err == nil {
		t.Error("a line that is not JSON: got no error, want one")
	}
}
