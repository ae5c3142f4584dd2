package house

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPackagesAreInTheArchitecture: the table of packages has a line for each one, from
// the highest floor down and there by name, so that a new one has just one place.
func TestPackagesAreInTheArchitecture(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := floors()
	delete(all, ".") // it has nothing but documentation
	names := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		if all[a] != all[b] {
			return all[b] - all[a]
		}
		return strings.Compare(a, b)
	})
	var want []string
	for _, name := range names {
		want = append(want, fmt.Sprintf("| %d | `%s` |", all[name], name))
	}
	got := regexp.MustCompile("(?m)^\\| \\d+ \\| `[^`]+` \\|").FindAllString(string(text), -1)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/architecture.md: lines of the table of packages (-want +got):\n%s", diff)
	}
}

func TestFloorsAreInOrder(t *testing.T) {
	seen := make(map[string]bool)
	for floor, packages := range byFloor() {
		if !slices.IsSorted(packages) {
			t.Errorf("internal/house/floors_test.go: floor %d is not in the order of names: %q", floor, packages)
		}
		for _, name := range packages {
			if seen[name] {
				t.Errorf("internal/house/floors_test.go: %s stands twice", name)
			}
			seen[name] = true
		}
	}
}
