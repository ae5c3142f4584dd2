package storm

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// playFile plays the history in a file, or looks for a shorter one that fails, too.
func playFile(t *testing.T, path string, shorter bool) {
	t.Helper()
	steps, backend := readFile(t, path)
	if !slices.Contains(backendNames(), backend) {
		t.Fatalf("%s: unknown backend %q, want one of %q", path, backend, backendNames())
	}
	o := readOptions(t, backend)
	if !shorter {
		runStorm(t, o, slices.Values(steps))
		return
	}
	left := reduce(t, o, steps, time.Now().Add(o.duration))
	text := historyText(o.backend, left)
	t.Logf("%d of %d steps are left:\n%s", len(left), len(steps), text)
	testenv.NoError(t, os.WriteFile(path+".reduced", []byte(text), 0o600))
}

// reduce removes steps as long as the history still violates the same invariants, until
// end. If a history does not fail every time, reduce may remove steps that it needs.
func reduce(t *testing.T, o *options, steps []step, end time.Time) []step {
	t.Helper()
	want := violatedBy(t, o, steps)
	if want == "" {
		t.Fatal("the history does not fail")
	}
	steps = withCalmAtEnd(steps)
	for size := len(steps) / 2; size > 0 && time.Now().Before(end); size /= 2 {
		for at := 0; at < len(steps) && time.Now().Before(end); {
			without := withCalmAtEnd(slices.Delete(slices.Clone(steps), at, min(at+size, len(steps))))
			if len(without) < len(steps) && violatedBy(t, o, without) == want {
				steps = without
				t.Logf("%d steps still fail", len(steps))
			} else {
				at += size
			}
		}
	}
	return steps
}

// withCalmAtEnd returns steps with a calm at the end, which detects most failures, and
// without consecutive calms.
func withCalmAtEnd(steps []step) []step {
	steps = append(steps, step{Do: doCalm})
	return slices.CompactFunc(steps, func(a, b step) bool { return a.Do == doCalm && b.Do == doCalm })
}

// violatedBy returns the names of the invariants that a history violates, each once.
func violatedBy(t *testing.T, o *options, steps []step) string {
	t.Helper()
	var names []string
	// As a subtest, the storm cleans up after itself before the next one.
	t.Run("try", func(t *testing.T) {
		s := newStorm(t, o)
		for _, v := range s.run(slices.Values(steps)) {
			names = append(names, v.invariant)
		}
	})
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// TestKept plays the histories in testdata, which have failed before, each with its backend.
func TestKept(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("testdata", "*.jsonl"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no histories: %v", err)
	}
	for _, path := range paths {
		steps, backend := readFile(t, path)
		if !slices.Contains(backendNames(), backend) {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(path), ".jsonl"), func(t *testing.T) {
			t.Parallel()
			s := runStorm(t, readOptions(t, backend), slices.Values(steps))
			if n := s.judge.counts[failedPrograms]; n > 0 {
				t.Errorf("got %d programs that failed, want 0, or the history shows nothing", n)
			}
			if t.Failed() {
				s.keep()
			}
		})
	}
}

// backendLine begins the first line of a file, which names the backend.
const backendLine = "# backend: "

// historyText returns the steps of a backend, one per line.
func historyText(backend string, steps []step) string {
	text := backendLine + backend + "\n"
	for i := range steps {
		text += steps[i].String() + "\n"
	}
	return text
}

func readFile(t testing.TB, path string) (steps []step, backend string) {
	t.Helper()
	text, err := os.ReadFile(path)
	testenv.NoError(t, err)
	first, _, _ := strings.Cut(string(text), "\n")
	backend, ok := strings.CutPrefix(first, backendLine)
	if !ok {
		t.Fatalf("%s: first line: got %q, want prefix %q", path, first, backendLine)
	}
	if steps, err = readHistory(strings.NewReader(string(text))); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return steps, backend
}
