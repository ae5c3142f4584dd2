package storm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// playFile plays the history of a file, or reduces it.
func playFile(t *testing.T, path string) {
	t.Helper()
	steps, backend := readFile(t, path)
	o := readOptions(t, backend)
	if os.Getenv(reduceVariable) == "" {
		weather(t, o, slices.Values(steps))
		return
	}
	shorter := reduce(t, o, steps, time.Now().Add(o.lasts))
	text, err := historyText(o.backend, shorter)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d steps are left:\n%s", len(shorter), len(steps), text)
	if err := os.WriteFile(path+".reduced", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// reduce gives a history that fails in the same way with fewer steps, as far as it gets in
// the time. What fails by chance only may lose what it needs.
func reduce(t *testing.T, o *options, steps []step, end time.Time) []step {
	t.Helper()
	want := fails(t, o, steps)
	if want == "" {
		t.Fatal("this history does not fail")
	}
	steps = closed(steps)
	for size := len(steps) / 2; size > 0 && time.Now().Before(end); size /= 2 {
		for at := 0; at < len(steps) && time.Now().Before(end); {
			without := closed(slices.Delete(slices.Clone(steps), at, min(at+size, len(steps))))
			if len(without) < len(steps) && fails(t, o, without) == want {
				steps = without
				t.Logf("%d steps fail, too", len(steps))
			} else {
				at += size
			}
		}
	}
	return steps
}

// closed gives steps with a calm at the end, which is where most things show, and with
// no two calms in a row.
func closed(steps []step) []step {
	steps = append(steps, step{Do: doCalm})
	return slices.CompactFunc(steps, func(a, b step) bool { return a.Do == doCalm && b.Do == doCalm })
}

// fails gives the invariants that a history violates, each once.
func fails(t *testing.T, o *options, steps []step) string {
	t.Helper()
	var names []string
	// What a storm leaves behind goes with a test of its own.
	t.Run("try", func(t *testing.T) {
		t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
		s := newStorm(t, o)
		for _, v := range s.run(slices.Values(steps)) {
			names = append(names, v.invariant)
		}
	})
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// TestKept plays the histories that have failed once, each with its backend.
func TestKept(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("testdata", "*.jsonl"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no histories: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".jsonl"), func(t *testing.T) {
			steps, backend := readFile(t, path)
			s := weather(t, readOptions(t, backend), slices.Values(steps))
			if t.Failed() {
				s.keep()
			}
		})
	}
}

// backendLine begins the first line of a file, which names the backend.
const backendLine = "# backend: "

func historyText(backend string, steps []step) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s\n", backendLine, backend)
	err := writeHistory(&b, steps)
	return b.String(), err
}

func readFile(t testing.TB, path string) (steps []step, backend string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	backend, ok := strings.CutPrefix(first, backendLine)
	if !ok {
		t.Fatalf("%s: the first line is %q, want it to begin with %q", path, first, backendLine)
	}
	if steps, err = readHistory(strings.NewReader(string(text))); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return steps, backend
}
