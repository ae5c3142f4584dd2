package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// kubeadm is what kubeadm writes.
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

// read gives the configuration of a command line that may name a file by FILE.
func readConfig(t *testing.T, file, flags string) (*config, string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	c, err := readCommandLine(strings.Fields(strings.ReplaceAll(flags, "FILE", path)), &out)
	if c != nil {
		c.task.configFile = ""
	}
	return c, out.String(), err
}

func TestConfig(t *testing.T) {
	seconds := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Second} }
	for name, tc := range map[string]struct {
		file, flags string
		want        func(*config)
	}{
		"nothing": {"", "", func(*config) {}},
		"kubeadm": {kubeadm, "-config FILE", func(c *config) {
			c.client = clientConfig{kubeconfig: "/var/lib/kube-proxy/kubeconfig.conf"}
			c.serving.bindAddress = "0.0.0.0"
			c.pods.clusterCIDR = "10.244.0.0/16,fd00:10::/56"
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
				c.mode, c.hostnameOverride, c.nodePorts, c.verbosity = "nftables", "two", []string{"10.0.0.0/8"}, 4
				c.nftables = modeConfig{masqueradeAll: true, masqueradeBit: 3, syncPeriod: seconds(20), minimumInterval: seconds(1)}
				c.conntrack.maxPerCore, c.conntrack.established, c.conntrack.udpTimeout, c.conntrack.beLiberal = 0, seconds(0), seconds(30), true
				c.pods, c.serving.profiling = podsConfig{mode: "BridgeInterface", bridge: "cni0"}, true
				c.notes = []string{"flag -cluster-cidr is ignored, since there is a file", "flag -profiling is ignored, since there is a file"}
			},
		},
		"what is not known": {header + "mode: iptables\nmode: nftables\nfuture: {x: 1}\nfeatureGates: {Some: true}\nipvs: {strictARP: true, scheduler: rr}\noomScoreAdj: -998\nconntrack: {more: 1}\n", "-config FILE", func(c *config) {
			c.mode = "nftables"
			c.notes = []string{
				`yaml: unmarshal errors:` + "\n" + `  line 4: key "mode" already set in map`, "field conntrack.more is not known",
				"field featureGates.Some is ignored", "field future is not known", "field ipvs.scheduler is ignored", "field ipvs.strictARP is ignored", "field oomScoreAdj is ignored",
			}
		}},
		"flags": {"", "--proxy-mode iptables --kubeconfig /k --master https://192.0.2.1:6443 --cluster-cidr 10.0.0.0/8 --nodeport-addresses 10.0.0.0/8,fd00::/8 --masquerade-all " +
			"--healthz-bind-address 0.0.0.0:1 --metrics-bind-address 127.0.0.1:2 --detect-local-mode NodeCIDR --conntrack-min 7 --conntrack-udp-timeout 5s --ipvs-strict-arp --oom-score-adj -998 --init-only",
			func(c *config) {
				c.mode, c.client.kubeconfig, c.client.master, c.task.initOnly = "iptables", "/k", "https://192.0.2.1:6443", true
				c.pods = podsConfig{mode: "NodeCIDR", clusterCIDR: "10.0.0.0/8"}
				c.nodePorts = []string{"10.0.0.0/8", "fd00::/8"}
				c.iptables.masqueradeAll, c.nftables.masqueradeAll = true, true
				c.serving = servingConfig{healthz: "0.0.0.0:1", metrics: "127.0.0.1:2"}
				c.conntrack.minimum, c.conntrack.udpTimeout = 7, seconds(5)
				c.notes = []string{"flag -ipvs-strict-arp is ignored", "flag -oom-score-adj is ignored"}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, out, err := readConfig(t, tc.file, tc.flags)
			if err != nil {
				t.Fatalf("error %v, and it says\n%s", err, out)
			}
			want := defaults()
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
		{"", "-conntrack-min many", "invalid syntax"},
		{"", "-cleanup -init-only", "exclude each other"},
		{"kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1", "-config FILE", "is no KubeProxyConfiguration"},
		{header + "mode: [a]", "-config FILE", "mode: json: cannot unmarshal array"},
		{header + "mode: 5\niptables: {syncPeriod: soon}", "-config FILE", `iptables.syncPeriod: time: invalid duration "soon"`},
		{header + "iptables: 3", "-config FILE", "iptables: 3 is no object"},
		{"- a", "-config FILE", "cannot unmarshal array"},
		{"a: [", "-config FILE", "did not find expected node content"},
	} {
		if _, out, err := readConfig(t, tc.file, tc.flags); err == nil || !strings.Contains(out, tc.want) {
			t.Errorf("%s %q: error %v, and it says\n%s\nwanted %s", tc.flags, tc.file, err, out, tc.want)
		}
	}
	var out strings.Builder
	if status := run([]string{"-nonsense"}, &out); status != 2 {
		t.Errorf("status of a bad flag is %d, wanted 2", status)
	}
	if status := run([]string{"-help"}, &out); status != 0 {
		t.Errorf("status of -help is %d, wanted 0", status)
	}
}
