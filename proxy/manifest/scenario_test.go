package manifest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestScenarios plays the archives in testdata/scenarios. Their sections are
// read in order: at a section "look" the source checks until all files are stable; the section
// lists the calls of the handler since the last one, and all current problems and
// ignored kinds. A section "-NAME" deletes a file; any other one writes it.
func TestScenarios(t *testing.T) {
	paths, err := filepath.Glob("testdata/scenarios/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			testenv.NoError(t, err)
			playScenario(t, archive)
		})
	}
}

func playScenario(t *testing.T, archive *txtar.Archive) {
	dir := t.TempDir()
	f, r := follow(t, dir)
	looks := 0
	for _, section := range archive.Files {
		name, text := section.Name, string(section.Data)
		if name == "look" {
			looks++
			untilStable(t, f)
			want := strings.Split(strings.TrimSpace(text), "\n")
			got := append(r.take(), currentLines(f, dir)...)
			if len(got) == 0 {
				got = []string{""}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("look %d (-want +got):\n%s", looks, diff)
			}
			continue
		}
		if name, ok := strings.CutPrefix(name, "-"); ok {
			testenv.NoError(t, os.Remove(filepath.Join(dir, name)))
			continue
		}
		testenv.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		write(t, dir, name, text)
	}
	if looks == 0 {
		t.Error("scenario without a look")
	}
}

// currentLines returns the current problems and ignored kinds.
func currentLines(f *follower, dir string) []string {
	var lines []string
	for _, line := range errorLines(f.problems()) {
		lines = append(lines, "problem "+strings.ReplaceAll(line, dir+string(filepath.Separator), ""))
	}
	ignored := f.summary(nil).Ignored
	for _, k := range slices.Sorted(maps.Keys(ignored)) {
		lines = append(lines, fmt.Sprintf("ignored %d %s", ignored[k], k))
	}
	return lines
}
