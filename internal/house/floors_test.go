package house

import (
	"slices"
	"strings"
	"testing"
)

// floors returns the floor of each package. A package imports only lower floors; its tests can
// import its own floor too. A new package is added here first.
func floors() map[string]int { //nolint:funlen // a table
	return map[string]int{
		"backends/kernelspace/hcn":           0,
		"backends/userspace/internal/neterr": 0,
		"internal/enum":                      0,
		"internal/house":                     0,
		"internal/house/skipcheck":           0,
		"internal/ipaddr":                    0,
		"internal/journal":                   0,
		"internal/kernel/netns":              0,
		"internal/nearest":                   0,
		"internal/pause":                     0,
		"internal/pmap":                      0,
		"internal/problemlog":                0,
		"internal/testing/testenv":           0,

		"affinity":                     1,
		"allocator":                    1,
		"backends/kernelspace/hcntest": 1,
		"endpoints":                    1,
		"internal/hcnschema":           1,
		"internal/house/mutants":       1,
		"internal/kernel/legacytables": 1,
		"internal/kernel/rawnetlink":   1,
		"internal/testing/netnstest":   1,
		"internal/testing/objects":     1,
		"internal/testing/servertest":  1,
		"internal/testing/vm":          1,

		"allocator/filestore":        2,
		"allocator/kubestore":        2,
		"allocator/repair":           2,
		"allocator/storetest":        2,
		"backends/kernelspace/hns":   2,
		"internal/kernel/nfnetlink":  2,
		"internal/peer/controlplane": 2,
		"internal/testing/lab":       2,
		"internal/testing/simhns":    2,
		"proxy":                      2,

		"allocator/etcdstore":                3,
		"allocator/prommetrics":              3,
		"backends":                           3,
		"backends/internal/nodecheck":        3,
		"backends/userspace/internal/engine": 3,
		"internal/kernel/ipvs":               3,
		"internal/testing/agenttest":         3,
		"internal/testing/cluster":           3,
		"internal/testing/snapshots":         3,
		"proxy/conntrack":                    3,
		"proxy/health":                       3,
		"proxy/inspect":                      3,
		"proxy/kubewatch":                    3,
		"proxy/manifest":                     3,
		"proxy/prommetrics":                  3,

		"backends/backendtest":                4,
		"backends/kernelspace":                4,
		"backends/userspace/internal/winaddr": 4,
		"internal/kernel/nft":                 4,

		"backends/internal/stagetest": 5,
		"backends/internal/xtables":   5,

		"backends/internal/kinds": 6,

		"backends/userspace/internal/host": 7,

		"backends/userspace/internal/addresses": 8,
		"backends/userspace/internal/netfilter": 8,

		"backends/iptables":               9,
		"backends/ipvs":                   9,
		"backends/nftables":               9,
		"backends/userspace":              9,
		"examples/kubeproxy/ipvstakeover": 9,

		".":                             10,
		"examples/allocator":            10,
		"examples/custombackend":        10,
		"examples/embed":                10,
		"examples/kubeproxy/agent":      10,
		"examples/manifestproxy":        10,
		"examples/quickstart":           10,
		"internal/testing/scale":        10,
		"internal/peer":                 10,
		"internal/peer/browser":         10,
		"internal/peer/differential":    10,
		"internal/peer/image":           10,
		"internal/peer/ipvsmode":        10,
		"internal/peer/metrics":         10,
		"internal/peer/release":         10,
		"internal/peer/sidebyside":      10,
		"internal/peer/windows":         10,
		"internal/testing/differential": 10,
		"internal/testing/storm":        10,

		"examples/kubeproxy":     11,
		"internal/peer/e2e":      11,
		"internal/peer/embedded": 11,
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
