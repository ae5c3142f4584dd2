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

	"github.com/vipkit/vipkit/internal/testenv"
)

// onlyForTests names the packages that no program and no package for users imports.
func onlyForTests() []string {
	return []string{
		"allocator/storetest",
		"backends/backendtest",
		"backends/internal/stagetest",
		"internal/agenttest",
		"internal/differential",
		"internal/house",
		"internal/house/mutants",
		"internal/house/skipcheck",
		"internal/netns/netnstest",
		"internal/peer",
		"internal/peer/browser",
		"internal/peer/controlplane",
		"internal/peer/differential",
		"internal/peer/e2e",
		"internal/peer/image",
		"internal/peer/ipvsmode",
		"internal/peer/metrics",
		"internal/peer/release",
		"internal/peer/sidebyside",
		"internal/peer/windows",
		"internal/servertest",
		"internal/simhns",
		"internal/storm",
		"internal/testenv",
		"internal/testing/lab",
		"internal/testing/objects",
		"internal/testing/snapshots",
		"internal/vm",
	}
}

// TestPackagesAreInTheArchitecture checks that the two tables of packages have a line for each
// package, from the highest floor down and by name within a floor. The second table has the
// packages that only tests use.
func TestPackagesAreInTheArchitecture(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	testenv.NoError(t, err)
	all := floors()
	delete(all, ".") // it has only documentation
	names := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		if all[a] != all[b] {
			return all[b] - all[a]
		}
		return strings.Compare(a, b)
	})
	var want, later []string
	for _, name := range names {
		line := fmt.Sprintf("| %d | `%s` |", all[name], name)
		if slices.Contains(onlyForTests(), name) {
			later = append(later, line)
		} else {
			want = append(want, line)
		}
	}
	got := regexp.MustCompile("(?m)^\\| \\d+ \\| `[^`]+` \\|").FindAllString(string(text), -1)
	if diff := cmp.Diff(append(want, later...), got); diff != "" {
		t.Errorf("docs/architecture.md: lines of the tables of packages (-want +got):\n%s", diff)
	}
}

// TestRootListsPackages checks that the comment of the root package has each package for users.
func TestRootListsPackages(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "doc.go"))
	testenv.NoError(t, err)
	for name := range floors() {
		isCommand := strings.HasPrefix(name, "examples/")
		isInternal := slices.Contains(strings.Split(name, "/"), "internal")
		if name == "." || isCommand || isInternal {
			continue
		}
		if !regexp.MustCompile(regexp.QuoteMeta(module+"/"+name) + `[],:]`).Match(text) {
			t.Errorf("doc.go: lacks package %s", name)
		}
	}
}

func TestOnlyTestsUsePackagesForTests(t *testing.T) {
	names := onlyForTests()
	for _, name := range names {
		if _, ok := floors()[name]; !ok {
			t.Errorf("internal/house/packages_test.go: package %s does not exist", name)
		}
	}
	for _, d := range readTree(t) {
		if slices.Contains(names, d.path) {
			continue
		}
		for _, s := range d.sources {
			for _, spec := range s.ast.Imports {
				if target, isOurs := ourPackage(spec.Path.Value); isOurs && !s.isTest() && slices.Contains(names, target) {
					t.Error(s.found(spec.Pos(), "imports %s, which is only for tests", target))
				}
			}
		}
	}
}

func TestFloorsAreInOrder(t *testing.T) {
	seen := make(map[string]bool)
	for floor, packages := range byFloor() {
		if !slices.IsSorted(packages) {
			t.Errorf("internal/house/floors_test.go: floor %d is not sorted: %q", floor, packages)
		}
		for _, name := range packages {
			if seen[name] {
				t.Errorf("internal/house/floors_test.go: %s is listed twice", name)
			}
			seen[name] = true
		}
	}
}
