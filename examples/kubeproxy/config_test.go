package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// kubeadm is a configuration that kubeadm has written.
const kubeadm = header + `
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection: {acceptContentTypes: "", burst: 0, contentType: "", kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
clusterCIDR: 10.244.0.0/16,fd00:10::/56
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpBeLiberal: false, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null, udpStreamTimeout: 0s, udpTimeout: 0s}
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: "", strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s, tcpTimeout: 0s, udpTimeout: 0s}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
metricsBindAddress: ""
mode: ""
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: "", rootHnsEndpointName: "", sourceVip: ""}
`

// readConfig returns the configuration of flags, in which FILE stands for the path of the file.
func readConfig(t *testing.T, file, flags string) (*config, string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	c, err := readCommandLineOn("linux", strings.Fields(strings.ReplaceAll(flags, "FILE", path)), &out)
	if c != nil {
		c.configFile, c.system = "", ""
	}
	return c, out.String(), err
}

func TestConfig(t *testing.T) {
	seconds := func(n int) duration { return duration{time.Duration(n) * time.Second} }
	for name, tc := range map[string]struct {
		file, flags string
		want        func(*config)
	}{
		"nothing": {"", "", func(*config) {}},
		"kubeadm": {kubeadm, "-config FILE", func(c *config) {
			c.ClientConnection = clientConnection{Kubeconfig: "/var/lib/kube-proxy/kubeconfig.conf"}
			c.BindAddress = "0.0.0.0"
			c.ClusterCIDR = "10.244.0.0/16,fd00:10::/56"
		}},
		"much": {
			header + `
mode: nftables
hostnameOverride: one
nodePortAddresses: [10.0.0.0/8]
nftables: {masqueradeAll: true, masqueradeBit: 3, minSyncPeriod: 1s, syncPeriod: 20s}
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, udpTimeout: 30s, tcpBeLiberal: true}
detectLocalMode: BridgeInterface
detectLocal: {bridgeInterface: cni0}
enableProfiling: true
`, "--config=FILE --hostname-override=two -v=4 --cluster-cidr=10.0.0.0/8 --profiling", func(c *config) {
				c.Mode, c.HostnameOverride, c.NodePortAddresses, c.Logging.Verbosity = "nftables", "two", []string{"10.0.0.0/8"}, 4
				c.NFTables = modeConfig{MasqueradeAll: true, MasqueradeBit: 3, SyncPeriod: seconds(20), MinSyncPeriod: seconds(1)}
				c.Conntrack.MaxPerCore, c.Conntrack.TCPEstablishedTimeout, c.Conntrack.UDPTimeout, c.Conntrack.TCPBeLiberal = 0, seconds(0), seconds(30), true
				c.DetectLocalMode, c.DetectLocal.BridgeInterface, c.EnableProfiling = "BridgeInterface", "cni0", true
				c.notes = []string{"flag -cluster-cidr is ignored because of -config", "flag -profiling is ignored because of -config"}
			},
		},
		"unknown fields": {header + "mode: iptables\nmode: nftables\nfuture: {x: 1}\nfeatureGates: {Some: true}\nipvs: {future: 1}\noomScoreAdj: -998\nconntrack: {more: 1}\n", "-config FILE", func(c *config) {
			c.Mode = "nftables"
			c.notes = []string{
				`yaml: unmarshal errors:` + "\n" + `  line 4: key "mode" already set in map`, "field conntrack.more is unknown",
				"field featureGates.Some is ignored", "field future is unknown", "field ipvs.future is unknown", "field oomScoreAdj is ignored",
			}
		}},
		"gates": {header + "featureGates: {AllowServiceExternalIPs: false, Other: false, allowServiceExternalIPs: true}\n", "-config FILE --feature-gates=AllowServiceExternalIPs=true", func(c *config) {
			c.FeatureGates.AllowServiceExternalIPs = new(false)
			c.notes = []string{
				"field featureGates.Other is ignored", "field featureGates.allowServiceExternalIPs is ignored", "flag -feature-gates is ignored because of -config",
			}
		}},
		"no gates": {header + "featureGates: {AllowServiceExternalIPs: null}\n", "-config FILE", func(*config) {}},
		"gates by flags": {"", "--feature-gates=Other=true,AllowServiceExternalIPs=true, --feature-gates AllowServiceExternalIPs=0", func(c *config) {
			c.FeatureGates.AllowServiceExternalIPs = new(false)
			c.notes = []string{"feature gate Other is ignored"}
		}},
		"flags": {"", "--proxy-mode iptables --kubeconfig /k --master https://192.0.2.1:6443 --cluster-cidr 10.0.0.0/8 --nodeport-addresses 10.0.0.0/8,fd00::/8 --masquerade-all " +
			"--healthz-bind-address 0.0.0.0:1 --metrics-bind-address 127.0.0.1:2 --detect-local-mode NodeCIDR --conntrack-min 7 --conntrack-udp-timeout 5s --oom-score-adj -998 --init-only",
			func(c *config) {
				c.Mode, c.ClientConnection.Kubeconfig, c.master, c.initOnly = "iptables", "/k", "https://192.0.2.1:6443", true
				c.DetectLocalMode, c.ClusterCIDR = "NodeCIDR", "10.0.0.0/8"
				c.IPTables.MasqueradeAll, c.NFTables.MasqueradeAll = true, true
				c.serving = serving{HealthzBindAddress: "0.0.0.0:1", MetricsBindAddress: "127.0.0.1:2", NodePortAddresses: []string{"10.0.0.0/8", "fd00::/8"}}
				c.Conntrack.Min, c.Conntrack.UDPTimeout = 7, seconds(5)
				c.notes = []string{"flag -oom-score-adj is ignored"}
			},
		},
		"ipvs": {header + "mode: ipvs\nipvs: {excludeCIDRs: [10.1.0.0/16], minSyncPeriod: 1s, scheduler: wlc, strictARP: true, syncPeriod: 20s, tcpFinTimeout: 2s, tcpTimeout: 3s, udpTimeout: 4s}\n", "-config FILE -ipvs-scheduler rr", func(c *config) {
			c.Mode = "ipvs"
			c.IPVS = ipvsConfig{
				SyncPeriod: seconds(20), MinSyncPeriod: seconds(1), Scheduler: "wlc", ExcludeCIDRs: []string{"10.1.0.0/16"},
				StrictARP: true, TCPTimeout: seconds(3), TCPFinTimeout: seconds(2), UDPTimeout: seconds(4),
			}
			c.notes = []string{"flag -ipvs-scheduler is ignored because of -config"}
		}},
		"draining": {header, "-config FILE -ipvs-drain-timeout=-1s -ipvs-drain-services", func(c *config) {
			c.drainTimeout, c.drainServices = -time.Second, true
		}},
		"ipvs by flags": {"", "--proxy-mode=ipvs --ipvs-scheduler=wlc --ipvs-sync-period=20s --ipvs-min-sync-period=1s --ipvs-exclude-cidrs=10.1.0.0/16,fd00::/64 " +
			"--ipvs-strict-arp --ipvs-tcp-timeout=3s --ipvs-tcpfin-timeout=2s --ipvs-udp-timeout=4s --iptables-sync-period=5s --cleanup --cleanup-ipvs=false",
			func(c *config) {
				c.Mode, c.cleanup, c.cleanupIPVS = "ipvs", true, false
				c.IPVS = ipvsConfig{
					SyncPeriod: seconds(20), MinSyncPeriod: seconds(1), Scheduler: "wlc", ExcludeCIDRs: []string{"10.1.0.0/16", "fd00::/64"},
					StrictARP: true, TCPTimeout: seconds(3), TCPFinTimeout: seconds(2), UDPTimeout: seconds(4),
				}
				c.IPTables.SyncPeriod, c.NFTables.SyncPeriod = seconds(5), seconds(5)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, out, err := readConfig(t, tc.file, tc.flags)
			if err != nil {
				t.Fatalf("got error %v, output\n%s", err, out)
			}
			want := &config{kubeProxyConfiguration: defaults(), task: task{cleanupIPVS: true, drainTimeout: 15 * time.Minute}}
			tc.want(want)
			if diff := cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
				t.Errorf("configuration (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBadConfig(t *testing.T) {
	for _, tc := range []struct{ file, flags, want string }{
		{"", "-config /none", "no such file"},
		{"", "more", `unexpected argument "more"`},
		{"", "-nonsense", "not defined: -nonsense"},
		{"", "-feature-gates AllowServiceExternalIPs", "want name=true or name=false"},
		{"", "-feature-gates AllowServiceExternalIPs=off", "feature gate AllowServiceExternalIPs"},
		{header + "featureGates: {AllowServiceExternalIPs: 'false'}", "-config FILE", "featureGates.AllowServiceExternalIPs of type bool"},
		{header + "featureGates: [AllowServiceExternalIPs]", "-config FILE", "featureGates"},
		{"", "-conntrack-min many", `invalid value "many" for flag -conntrack-min`},
		{"", "-cleanup -init-only", "exclude each other"},
		{"", "-ipvs-strict-arp=some", `invalid boolean value "some" for -ipvs-strict-arp`},
		{header + "ipvs: {scheduler: 3}", "-config FILE", "ipvs.scheduler of type string"},
		{header + "ipvs: {excludeCIDRs: 10.0.0.0/8}", "-config FILE", "ipvs.excludeCIDRs of type []string"},
		{header + "ipvs: {tcpTimeout: soon}", "-config FILE", `cannot unmarshal "soon" into Go struct field ipvsConfig.ipvs.tcpTimeout`},
		{"kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1", "-config FILE", "want KubeProxyConfiguration"},
		{header + "mode: [a]", "-config FILE", ".mode of type string"},
		{header + "mode: 5", "-config FILE", "cannot unmarshal number into Go struct field kubeProxyConfiguration.mode"},
		{header + "Mode: 5\nmode: 5\niptables: {syncPeriod: soon}", "-config FILE", `cannot unmarshal "soon" into Go struct field modeConfig.iptables.syncPeriod`},
		{header + "iptables: 3", "-config FILE", "cannot unmarshal number into Go struct field kubeProxyConfiguration.iptables"},
		{"- a", "-config FILE", "cannot unmarshal array"},
		{"a: [", "-config FILE", "did not find expected node content"},
	} {
		if _, out, err := readConfig(t, tc.file, tc.flags); err == nil || !strings.Contains(out, tc.want) {
			t.Errorf("%s %q: got error %v, output\n%s\nwant %s", tc.flags, tc.file, err, out, tc.want)
		}
	}
	var out strings.Builder
	if status := run([]string{"-write-config-to", "/none/file"}, &out, &out); status != 1 || !strings.Contains(out.String(), "no such file") {
		t.Errorf("-write-config-to: got status %d, output\n%s\nwant 1 and no such file", status, &out)
	}
	if status := run([]string{"-nonsense"}, &out, &out); status != 2 {
		t.Errorf("status of a bad flag: got %d, want 2", status)
	}
	if status := run([]string{"-help"}, &out, &out); status != 0 {
		t.Errorf("status of -help: got %d, want 0", status)
	}
}

// TestDefaults checks that the defaults are those of kube-proxy.
func TestDefaults(t *testing.T) {
	const mode = `
  masqueradeAll: false
  masqueradeBit: 14
  minSyncPeriod: 0s
  syncPeriod: 0s`
	const want = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: ""
clientConnection:
  burst: 10
  kubeconfig: ""
  qps: 5
clusterCIDR: ""
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
iptables:` + mode + `
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
  verbosity: 0
metricsBindAddress: ""
mode: ""
nftables:` + mode + `
nodePortAddresses: null
`
	path := filepath.Join(t.TempDir(), "written")
	var out strings.Builder
	c, err := readCommandLineOn("linux", nil, &out)
	if err == nil {
		err = c.write(path)
	}
	if err != nil {
		t.Fatalf("got error %v; output\n%s", err, &out)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

// TestWriteConfig checks that -write-config-to writes the configuration in effect, and that
// it can be read again.
func TestWriteConfig(t *testing.T) {
	want, out, err := readConfig(t, kubeadm+"Mode: nothing\n", "-config FILE -hostname-override two -v 3")
	if err != nil {
		t.Fatalf("got error %v, output\n%s", err, out)
	}
	if want.Mode != "" || !slices.Contains(want.notes, "field Mode is unknown") {
		t.Errorf("field Mode: got mode %q, notes %q; want the field to be unknown, as names are case-sensitive", want.Mode, want.notes)
	}
	path := filepath.Join(t.TempDir(), "written")
	var stdout, log strings.Builder
	original := filepath.Join(t.TempDir(), "original")
	if err := os.WriteFile(original, []byte(kubeadm), 0o600); err != nil {
		t.Fatal(err)
	}
	if status := run([]string{"-config", original, "-hostname-override", "two", "-v", "3", "-write-config-to", path}, &stdout, &log); status != 0 {
		t.Fatalf("got status %d, want 0; log\n%s", status, &log)
	}
	got, notes, err := readFile(path)
	if err != nil || len(notes) > 0 {
		t.Errorf("reading it again: got error %v, notes %q; want none", err, notes)
	}
	if diff := cmp.Diff(want.kubeProxyConfiguration, got, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}

func TestVersion(t *testing.T) {
	var out, log strings.Builder
	if status := run([]string{"-version"}, &out, &log); status != 0 || log.Len() > 0 {
		t.Errorf("got status %d, log %q; want 0 and no log", status, &log)
	}
	if got := strings.Fields(out.String()); len(got) != 4 || got[1] != "github.com/vipkit/vipkit" || !strings.HasPrefix(got[3], "go1.") {
		t.Errorf("version: got %q, want program, module, version and Go", got)
	}
}
