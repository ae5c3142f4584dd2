package house

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// floors returns the floor of each package. A package imports only lower floors; its tests can
// import its own floor too. A new package is added here first.
func floors() map[string]int {
	all := make(map[string]int)
	for floor, packages := range byFloor() {
		for _, name := range packages {
			all[name] = floor
		}
	}
	return all
}

// byFloor returns the packages of each floor in the order of their names.
func byFloor() [][]string {
	return [][]string{
		0: {
			"backends/kernelspace/hcn",
			"backends/userspace/internal/neterr",
			"internal/enum",
			"internal/house",
			"internal/house/mutants",
			"internal/house/skipcheck",
			"internal/ipaddr",
			"internal/journal",
			"internal/kernel/netns",
			"internal/nearest",
			"internal/pause",
			"internal/pmap",
			"internal/problemlog",
			"internal/testing/testenv",
		},
		1: {
			"affinity",
			"allocator",
			"backends/kernelspace/hcntest",
			"endpoints",
			"internal/hcnschema",
			"internal/kernel/legacytables",
			"internal/kernel/rawnetlink",
			"internal/testing/netnstest",
			"internal/testing/objects",
			"internal/testing/servertest",
			"internal/testing/vm",
		},
		2: {
			"allocator/filestore",
			"allocator/kubestore",
			"allocator/rangemap",
			"allocator/repair",
			"allocator/storetest",
			"backends/kernelspace/hns",
			"internal/kernel/nfnetlink",
			"internal/peer/controlplane",
			"internal/testing/lab",
			"internal/testing/simhns",
			"proxy",
		},
		3: {
			"allocator/etcdstore",
			"allocator/prommetrics",
			"backends",
			"backends/internal/nodecheck",
			"backends/userspace/internal/engine",
			"internal/kernel/ipvs",
			"internal/testing/agenttest",
			"internal/testing/snapshots",
			"proxy/conntrack",
			"proxy/health",
			"proxy/inspect",
			"proxy/kubewatch",
			"proxy/manifest",
			"proxy/prommetrics",
		},
		4: {
			"backends/backendtest",
			"backends/kernelspace",
			"backends/userspace/internal/winaddr",
			"internal/kernel/nft",
		},
		5: {
			"backends/internal/stagetest",
			"backends/internal/xtables",
		},
		6: {
			"backends/internal/kinds",
		},
		7: {
			"backends/userspace/internal/host",
		},
		8: {
			"backends/userspace/internal/addresses",
			"backends/userspace/internal/netfilter",
		},
		9: {
			"backends/iptables",
			"backends/ipvs",
			"backends/nftables",
			"backends/userspace",
			"examples/kubeproxy/ipvstakeover",
		},
		10: {
			".",
			"examples/allocator",
			"examples/custombackend",
			"examples/embed",
			"examples/kubeproxy/agent",
			"examples/manifestproxy",
			"examples/quickstart",
			"internal/peer",
			"internal/peer/browser",
			"internal/peer/differential",
			"internal/peer/image",
			"internal/peer/ipvsmode",
			"internal/peer/metrics",
			"internal/peer/release",
			"internal/peer/sidebyside",
			"internal/peer/windows",
			"internal/testing/differential",
			"internal/testing/scale",
			"internal/testing/storm",
		},
		11: {
			"examples/kubeproxy",
			"internal/peer/e2e",
			"internal/peer/embedded",
		},
	}
}

func checkFloors(d *folder) []finding {
	first := d.sources[0]
	own, ok := floors()[d.path]
	if !ok {
		return []finding{first.found(first.ast.Package, "package %s has no floor in internal/house/floors_test.go", d.path)}
	}
	var all []finding
	for _, s := range d.sources {
		for _, spec := range s.ast.Imports {
			target, isOurs := ourPackage(spec.Path.Value)
			if !isOurs || s.isTest() && target == d.path {
				continue
			}
			floor, ok := floors()[target]
			switch {
			case !ok:
				all = append(all, s.found(spec.Pos(), "%s has no floor", target))
			case floor > own, floor == own && !s.isTest():
				all = append(all, s.found(spec.Pos(), "floor %d imports %s of floor %d", own, target, floor))
			}
		}
	}
	return all
}

// ourPackage returns the folder of an import of this module.
func ourPackage(literal string) (string, bool) {
	name := strings.Trim(literal, `"`)
	if name == module {
		return ".", true
	}
	return strings.CutPrefix(name, module+"/")
}

// edge is a set of packages that only some files are allowed to import.
type edge struct {
	packages []string // with all packages below them
	files    []string // patterns of [path.Match]; the name of a folder means all files below it
	tests    bool     // all tests are allowed to
}

func edges() []edge {
	return []edge{
		{packages: []string{"k8s.io/klog"}, files: []string{"internal/peer"}},
		{packages: []string{"k8s.io/kubernetes"}, files: []string{"internal/peer"}},
		{packages: []string{"k8s.io/client-go"}, files: []string{"proxy/kubewatch", "allocator/kubestore", "examples", "internal/peer"}},
		{packages: []string{"github.com/prometheus"}, files: []string{"allocator/prommetrics", "proxy/prommetrics", "examples", "internal/peer/metrics", "internal/peer/e2e"}},
		{
			packages: []string{
				"os/exec", "golang.org/x/sys/unix", "github.com/google/nftables",
				"github.com/mdlayher", "github.com/vishvananda", "github.com/moby",
			},
			files: []string{
				"internal/testing/agenttest/*_linux.go", "internal/house/mutants", "internal/house/skipcheck", "internal/testing/servertest", "internal/testing/vm", "internal/kernel/rawnetlink", "internal/kernel/ipvs/*_linux.go", "internal/kernel/nfnetlink", "internal/kernel/nft", "internal/kernel/netns", "backends/internal/nodecheck/*_linux.go", "internal/kernel/legacytables", "internal/testing/lab", "internal/testing/netnstest",
				"internal/peer/controlplane/*_linux.go", "internal/peer/image",
				"backends/nftables/*_linux.go",
				"backends/internal/kinds/*_linux.go", "backends/internal/stagetest/*_linux.go", "backends/internal/xtables/*_linux.go", "backends/ipvs/*_linux.go", "backends/userspace/*_linux.go", "backends/userspace/internal/host/*_linux.go",
				"backends/userspace/internal/netfilter/*_linux.go", "backends/userspace/internal/winaddr",
				"backends/backendtest", "examples", "proxy/conntrack/*_linux.go",
			},
			tests: true,
		},
	}
}

func checkImports(s *source) []finding {
	var all []finding
	for _, spec := range s.ast.Imports {
		name := strings.Trim(spec.Path.Value, `"`)
		for _, e := range edges() {
			if e.guards(name) && !e.admits(s) {
				all = append(all, s.found(spec.Pos(), "%s must not be imported here", name))
			}
		}
	}
	return all
}

func (e edge) guards(pkg string) bool {
	return slices.ContainsFunc(e.packages, func(p string) bool { return isBelow(pkg, p) })
}

func (e edge) admits(s *source) bool {
	return e.tests && s.isTest() || slices.ContainsFunc(e.files, func(pattern string) bool {
		isMatch, err := path.Match(pattern, s.path)
		return isMatch && err == nil || isBelow(s.path, pattern)
	})
}

// isBelow reports whether a package is in one of the folders, or is one of them.
func isBelow(name string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool {
		return name == folder || strings.HasPrefix(name, folder+"/")
	})
}

func TestFloorsHaveTheirPackages(t *testing.T) {
	var have []string
	for _, d := range readTree(t) {
		have = append(have, d.path)
	}
	for name := range floors() {
		if !slices.Contains(have, name) {
			t.Errorf("internal/house/floors_test.go: package %s does not exist; remove it", name)
		}
	}
}

func TestTopLevelFolders(t *testing.T) {
	want := []string{".ci", "affinity", "allocator", "backends", "docs", "endpoints", "examples", "internal", "proxy"}
	personal := []string{".git", ".idea", ".vscode"}
	entries, err := os.ReadDir(root)
	testenv.NoError(t, err)
	for _, e := range entries {
		if e.IsDir() && !slices.Contains(want, e.Name()) && !slices.Contains(personal, e.Name()) {
			t.Errorf("%s: unknown folder, want one of %v", e.Name(), want)
		}
	}
}

// TestModule checks that the modules for users have no replacements, which importers would not
// inherit, and do not require k8s.io/kubernetes, which needs them.
func TestModule(t *testing.T) {
	for name, forbidden := range map[string][]string{
		"go.mod": {"replace", "k8s.io/kubernetes"},
		"go.sum": {"k8s.io/kubernetes"},

		"allocator/etcdstore/go.mod": {"replace", "k8s.io/kubernetes"},
		"examples/kubeproxy/go.mod":  {"replace", "k8s.io/kubernetes"},
		"examples/kubeproxy/go.sum":  {"k8s.io/kubernetes"},
	} {
		text, err := os.ReadFile(filepath.Join(root, name))
		testenv.NoError(t, err)
		for i, word := range badLines(string(text), forbidden) {
			t.Errorf("%s:%d: %s is not allowed", name, i, word)
		}
	}
}

// badLines returns the forbidden words of a module file by line.
func badLines(text string, forbidden []string) map[int]string {
	bad := map[int]string{}
	for i, line := range strings.Split(text, "\n") {
		code, _, _ := strings.Cut(line, "//")
		for word := range strings.FieldsSeq(code) {
			if slices.Contains(forbidden, word) {
				bad[i+1] = word
			}
		}
	}
	return bad
}
