package house

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// isOnlyForTests reports whether no program and no package for users imports a package.
func isOnlyForTests(name string) bool {
	return slices.Contains([]string{"allocator/storetest", "backends/backendtest", "backends/internal/stagetest"}, name) ||
		isBelow(name, "internal/testing", "internal/house", "internal/peer")
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
	imports := 0
	for _, d := range readTree(t) {
		for _, s := range d.sources {
			if isOnlyForTests(d.path) || s.isTest() {
				continue
			}
			for _, spec := range s.ast.Imports {
				imports++
				if target, isOurs := ourPackage(spec.Path.Value); isOurs && isOnlyForTests(target) {
					t.Errorf("%s imports %s, which is only for tests", s.path, target)
				}
			}
		}
	}
	if imports == 0 {
		t.Fatal("no package imports another one")
	}
}
