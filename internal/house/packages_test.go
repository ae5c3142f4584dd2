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
	for from, targets := range importsOfProduction(t) {
		if isOnlyForTests(from) {
			continue
		}
		for _, target := range targets {
			if isOnlyForTests(target) {
				t.Errorf("package %s imports %s, which is only for tests", from, target)
			}
		}
	}
}

// TestRooms checks that the packages below internal know neither Services nor backends, so that
// they can be read and tested on their own. Packages for tests may know all.
func TestRooms(t *testing.T) {
	exceptions := []string{
		"internal/hcnschema",   // encodes the objects of the public package hcn
		"internal/kernel/ipvs", // its errors wrap proxy.ErrUnsupported
		"internal/kernel/nft",  // its errors have the meanings that package backends defines
	}
	found := make(map[string]bool)
	for from, targets := range importsOfProduction(t) {
		if !isBelow(from, "internal") || isOnlyForTests(from) {
			continue
		}
		for _, target := range targets {
			switch {
			case isBelow(target, "internal"):
			case slices.Contains(exceptions, from):
				found[from] = true
			default:
				t.Errorf("package %s imports %s, want only packages below internal", from, target)
			}
		}
	}
	for _, name := range exceptions {
		if !found[name] {
			t.Errorf("package %s imports only packages below internal: remove it from the exceptions", name)
		}
	}
}

// importsOfProduction returns the packages of this repository that each package imports, except in its tests.
func importsOfProduction(t *testing.T) map[string][]string {
	t.Helper()
	all := make(map[string][]string)
	for _, d := range readTree(t) {
		for _, s := range d.sources {
			if s.isTest() {
				continue
			}
			for _, spec := range s.ast.Imports {
				if target, isOurs := ourPackage(spec.Path.Value); isOurs {
					all[d.path] = append(all[d.path], target)
				}
			}
		}
	}
	if len(all) == 0 {
		t.Fatal("no package imports another one")
	}
	return all
}
