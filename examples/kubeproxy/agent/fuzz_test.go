package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// FuzzConfig checks that no file makes the parser panic, and that a configuration that was
// read can be written and read again.
func FuzzConfig(f *testing.F) {
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	for _, text := range []string{
		"", "- a\n", head, head + "mode: iptables\nmode: nftables\n",
		head + "iptables: {masqueradeBit: 31, syncPeriod: 1h, minSyncPeriod: null}\nnodePortAddresses: [primary]\n",
		head + "conntrack: {maxPerCore: null, min: -1, udpTimeout: -1ns}\ndetectLocal: null\nipvs: {scheduler: rr}\n1: {2: x}\n",
		head + "featureGates: {AllowServiceExternalIPs: false, Other: true}\n", head + "featureGates: {AllowServiceExternalIPs: null}\n",
		head + "<<: *a\nclientConnection: &a {qps: 1e30, burst: 5}\nlogging: {verbosity: -9}\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "config.yaml")
		testenv.NoError(t, os.WriteFile(path, text, 0o600))
		var out strings.Builder
		c, err := newConfig("linux").readCommandLine([]string{"-config", path}, &out)
		if err != nil {
			return
		}
		testenv.NoError(t, c.write(path))
		again, err := newConfig("linux").readCommandLine([]string{"-config", path}, &out)
		if err != nil {
			t.Fatalf("reading what was written: got error %v, want none", err)
		}
		if diff := cmp.Diff(c.KubeProxyConfiguration, again.KubeProxyConfiguration); diff != "" {
			t.Errorf("configuration written and read again (-want +got):\n%s", diff)
		}
	})
}
