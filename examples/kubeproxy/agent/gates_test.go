package agent

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/component-base/featuregate"
)

// TestGates checks what the program does with feature gates that change who can reach what, and with
// those that kube-proxy refuses.
func TestGates(t *testing.T) {
	t.Parallel()
	const loopback = header + "nodePortAddresses: [primary, localhost]\n"
	for _, tc := range []struct{ file, want string }{
		{loopback + "mode: nftables\nfeatureGates: {KubeProxyNFTablesLocalhostNodePorts: true}", ""},
		{loopback + "mode: nftables\nfeatureGates: {AllAlpha: true}", ""},
		{loopback + "mode: nftables\nfeatureGates: {AllAlpha: true, KubeProxyNFTablesLocalhostNodePorts: false}", ""},
		{loopback + "mode: nftables\nfeatureGates: {AllBeta: true}", ""},
		{loopback + "mode: iptables\nfeatureGates: {KubeProxyNFTablesLocalhostNodePorts: true}", ""},
		{header + "mode: nftables\nnodePortAddresses: [all]\nfeatureGates: {KubeProxyNFTablesLocalhostNodePorts: true}", ""},
		{header + "mode: ipvs\nfeatureGates: {KubeProxyIPVS: false}", "featureGates.KubeProxyIPVS: false: mode ipvs needs it"},
		{header + "mode: nftables\nfeatureGates: {KubeProxyIPVS: false}", ""},
		{header + "featureGates: {PreferSameTrafficDistribution: false}", "cannot set feature gate PreferSameTrafficDistribution to false, feature is locked to true"},
		{header + "featureGates: {MultiCIDRServiceAllocator: false, WinDSR: false}", "cannot set feature gate WinDSR to false"},
		{header + "featureGates: {MultiCIDRServiceAllocator: true}", ""},
		{header + "featureGates: {AllBeta: false, AllAlpha: false}", ""},
		{header + "featureGates: {NFTablesProxyMode: true}", ""},
		{header + "featureGates: {NFTablesProxyMode: false}", "featureGates: cannot set feature gate NFTablesProxyMode to false, feature is locked to true"},
		// kube-proxy refuses a misspelled gate, so nobody may rely on what its default does.
		{header + "featureGates: {AllowServiceExternalIP: false}", "featureGates.AllowServiceExternalIP: false: unknown feature gate; did you mean AllowServiceExternalIPs?"},
		{header + "featureGates: {allowserviceexternalips: false}", "did you mean AllowServiceExternalIPs?"},
		{header + "featureGates: {AllAlpa: true}", "did you mean AllAlpha?"},
		{header + "featureGates: {NFTablesNetlnk: false, SomeOtherGate: false}", ""},
	} {
		_, out, err := readConfig(t, tc.file, "-config FILE")
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(out, tc.want)) {
			t.Errorf("%s: got error %v, want %q", tc.file, err, tc.want)
		}
	}
}

// TestExternalIPsGate checks that the gate counts, and that gates of a stage do not set it.
func TestExternalIPsGate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"": false, "AllowServiceExternalIPs=false": true, "AllowServiceExternalIPs=true": false, "AllAlpha=false,AllBeta=false": false} {
		c, out, err := readConfig(t, "", "-feature-gates="+text)
		if err != nil {
			t.Fatalf("%q: %v, %s", text, err, out)
		}
		if got := c.tracker(nftablesMode).IgnoreExternalIPs; got != want {
			t.Errorf("%q: external IPs are ignored: got %t, want %t", text, got, want)
		}
	}
}

// TestEveryGateIsKnown checks each gate with its default: the program starts, and says so if the gate
// has no meaning.
func TestEveryGateIsKnown(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, g := range gates() {
		if seen[string(g.name)] || g.help == "" || !strings.HasSuffix(g.help, ".") {
			t.Errorf("gate %s: got help %q, want a sentence, and the gate once", g.name, g.help)
		}
		seen[string(g.name)] = true
		c, out, err := readConfig(t, "", fmt.Sprintf("-feature-gates %s=%t", g.name, g.spec.Default))
		if err != nil || len(c.warnings) > 0 {
			t.Fatalf("gate %s: got error %v, warnings %q, output %s", g.name, err, c.warnings, out)
		}
		if said := len(c.notes) == 1; said != (g.use == gateMeaningless) {
			t.Errorf("gate %s, %s: got notes %q", g.name, g.use, c.notes)
		}
	}
}

// TestGatesDocument checks that docs/feature-gates.md has the table of gates.
func TestGatesDocument(t *testing.T) {
	t.Parallel()
	want := "| feature gate | stage in 1.37 | default | here | what happens |\n|---|---|---|---|---|\n"
	for _, g := range gates() {
		want += fmt.Sprintf("| `%s` | %s | %t | %s | %s |\n", g.name, g.stage(), g.spec.Default, g.use, g.help)
	}
	hasTable(t, "../../../docs/feature-gates.md", want)
}

// stage returns the stage of a gate in 1.37.
func (g *gate) stage() string {
	switch {
	case g.spec.LockToDefault:
		return "locked"
	case g.spec.PreRelease == featuregate.GA:
		return "stable"
	}
	return strings.ToLower(string(g.spec.PreRelease))
}

func (u gateUse) String() string { return [...]string{"meaningless", "honoured", "refused"}[u] }
