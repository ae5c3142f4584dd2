package agent

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestStatus checks the exit status and what is printed for a bad command line, and for -help.
func TestStatus(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if status := Main([]string{"-write-config-to", "/none/file"}, &out, &out); status != 1 || !strings.Contains(out.String(), "open /none/file: ") {
		t.Errorf("-write-config-to: got status %d, output\n%s\nwant 1 and an error of the file", status, &out)
	}
	out.Reset()
	if status := Main([]string{"-nonsense"}, &out, &out); status != 2 || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("a bad flag: got status %d, output\n%s\nwant 2, and one line", status, &out)
	}
	var help strings.Builder
	for _, arg := range []string{"-h", "--h", "--help", "-help"} {
		var log strings.Builder
		help.Reset()
		if status := Main([]string{"-v2", arg}, &help, &log); status != 0 || log.Len() > 0 {
			t.Errorf("%s: got status %d, log %q; want 0 and none", arg, status, &log)
		}
	}
	at := -1
	for _, want := range []string{"\nWhat is served:\n      --proxy-mode string", "\nWhere the program listens:\n", "\nKubernetes:\n", "  -v, --v Level", "\nIgnored, as", "  --oom-score-adj int32"} {
		i := strings.Index(help.String(), want)
		if i <= at {
			t.Errorf("-help: %q is at %d, want it after %d; output\n%s", want, i, at, &help)
		}
		at = i
	}
}

// TestDefaults checks that the defaults are kube-proxy's.
func TestDefaults(t *testing.T) { //nolint:funlen // a table
	t.Parallel()
	const mode = `
  masqueradeAll: false
  masqueradeBit: 14
  minSyncPeriod: 0s
  syncPeriod: 0s`
	const want = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: ""
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 10
  contentType: ""
  kubeconfig: ""
  qps: 5
clusterCIDR: ""
configSyncPeriod: 0s
conntrack:
  maxPerCore: 32768
  min: 131072
  tcpBeLiberal: false
  tcpCloseWaitTimeout: 1h0m0s
  tcpEstablishedTimeout: 24h0m0s
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables:
  localhostNodePorts: true` + mode + `
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: ""
  strictARP: false
  syncPeriod: 0s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
kind: KubeProxyConfiguration
logging:
  flushFrequency: 0
  format: text
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
metricsBindAddress: ""
mode: ""
nftables:` + mode + `
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: ""
  rootHnsEndpointName: ""
  sourceVip: ""
`
	path := filepath.Join(t.TempDir(), "written")
	var out strings.Builder
	c, err := newConfig("linux").readCommandLine(nil, &out)
	if err == nil {
		err = c.write(path)
	}
	if err != nil {
		t.Fatalf("got error %v; output\n%s", err, &out)
	}
	got, err := os.ReadFile(path)
	testenv.NoError(t, err)
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

// TestWriteConfig checks that -write-config-to writes the configuration in effect, and that
// it can be read again.
func TestWriteConfig(t *testing.T) {
	t.Parallel()
	path, original := filepath.Join(t.TempDir(), "written"), filepath.Join(t.TempDir(), "original")
	if err := os.WriteFile(original, []byte(kubeadm+"Mode: nothing\nfeatureGates: {AllowServiceExternalIPs: false}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	flags := []string{"-config", original, "-hostname-override", "two", "-v", "3"}
	want, err := newConfig("linux").readCommandLine(flags, &out)
	if err != nil || want.Mode != "" || !slices.Contains(want.warnings, "field Mode is unknown; did you mean mode?") {
		t.Errorf("field Mode: got mode %q, warnings %q, error %v; want the field to be unknown, as names are case-sensitive", want.Mode, want.warnings, err)
	}
	if status := Main(append(flags, "-write-config-to", path), &out, &out); status != 0 {
		t.Fatalf("got status %d, want 0; log\n%s", status, &out)
	}
	got, err := newConfig("linux").readCommandLine([]string{"-config", path}, &out)
	if err != nil || len(got.warnings) > 0 {
		t.Errorf("reading it again: got error %v, warnings %q; want none", err, got.warnings)
	}
	if diff := cmp.Diff(want.KubeProxyConfiguration, got.KubeProxyConfiguration, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}
