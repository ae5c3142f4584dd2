//go:build ipvs

package sidebyside

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
)

// TestIPVS measures the backend ipvs, kube-proxy's proxier of that mode, and moby/ipvs, the
// package that kube-proxy uses, alone, with the same Services. No step of kube-proxy may be
// cheaper both in duration and in processor time.
func TestIPVS(t *testing.T) {
	netnstest.NeedNamespaces(t)
	for _, services := range sizes(t) {
		measured := map[string]map[string]cost{}
		var table strings.Builder
		for _, name := range []string{ipvsFloor, ipvsOurs, ipvsTheirs} {
			// The first time the kernel loads modules, and it is still removing the namespace before.
			inNamespace(t, name, 0)
			measured[name] = inNamespace(t, name, services)
			table.WriteString(ipvsRow(name, services, measured[name]))
		}
		t.Logf("\n%s", table.String())
		compare(t, rivals{ours: ipvsOurs, theirs: ipvsTheirs}, services, measured)
	}
}

// ipvsRow returns a line of a table in Markdown.
func ipvsRow(name string, services int, costs map[string]cost) string {
	var b strings.Builder
	b.WriteString(row(name, services, costs))
	one := costs["endpoint"]
	fmt.Fprintf(&b, "  one endpoint replaced: p50 %s, p99 %s of %d; resident after everything from nothing: %d MiB, in the end: %d MiB\n",
		short(one.Wall), short(one.P99), one.Rounds, costs["cold"].Resident>>20, costs["restart"].Resident>>20)
	return b.String()
}
