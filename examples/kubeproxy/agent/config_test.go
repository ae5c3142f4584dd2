package agent

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/testenv"
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
	testenv.NoError(t, os.WriteFile(path, []byte(file), 0o600))
	var out strings.Builder
	c, err := newConfig("linux").readCommandLine(strings.Fields(strings.ReplaceAll(flags, "FILE", path)), &out)
	if c != nil {
		c.configFile, c.text, c.system = "", nil, ""
	}
	return c, out.String(), err
}

func TestConfig(t *testing.T) { //nolint:funlen // a table
	t.Parallel()
	seconds := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Second} }
	for name, tc := range map[string]struct {
		file, flags string
		want        func(*config)
	}{
		"nothing": {"", "", func(*config) {}},
		"kubeadm": {kubeadm, "-config FILE", func(c *config) {
			c.ClientConnection.Kubeconfig, c.ClientConnection.QPS, c.ClientConnection.Burst = "/var/lib/kube-proxy/kubeconfig.conf", 0, 0
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
				c.NFTables = v1alpha1.KubeProxyNFTablesConfiguration{MasqueradeAll: true, MasqueradeBit: new(int32(3)), SyncPeriod: seconds(20), MinSyncPeriod: seconds(1)}
				*c.Conntrack.MaxPerCore, *c.Conntrack.TCPEstablishedTimeout, c.Conntrack.UDPTimeout, c.Conntrack.TCPBeLiberal = 0, seconds(0), seconds(30), true
				c.DetectLocalMode, c.DetectLocal.BridgeInterface, c.EnableProfiling = "BridgeInterface", "cni0", true
				c.warnings = []string{"flag -cluster-cidr is ignored because of -config", "flag -profiling is ignored because of -config"}
			},
		},
		"unknown fields": {header + "mode: iptables\nmode: nftables\nfuture: {x: 1}\nfeatureGates: {Some: true}\nipvs: {future: 1}\nmasqueradeAll: true\niptables: {masqueradeAl: true}\noomScoreAdj: -998\nconntrack: {more: 1}\n", "-config FILE", func(c *config) {
			c.Mode = "nftables"
			c.FeatureGates = map[string]bool{"Some": true}
			c.warnings = []string{
				`yaml: unmarshal errors: line 4: key "mode" already set in map`, "field conntrack.more is unknown", "field future is unknown",
				"field iptables.masqueradeAl is unknown; did you mean iptables.masqueradeAll?", "field ipvs.future is unknown",
				"field masqueradeAll is unknown; did you mean nftables.masqueradeAll?", "field oomScoreAdj is ignored",
				"feature gate Some is ignored: kube-proxy does not read it",
			}
		}},
		"gates": {header + "featureGates: {AllowServiceExternalIPs: false, Other: false, allowServiceExternalIP: true}\n", "-config FILE --feature-gates=AllowServiceExternalIPs=true", func(c *config) {
			c.FeatureGates = map[string]bool{"AllowServiceExternalIPs": false, "Other": false, "allowServiceExternalIP": true}
			c.warnings = []string{
				"flag -feature-gates is ignored because of -config", "feature gate Other is ignored: kube-proxy does not read it",
				"feature gate allowServiceExternalIP is ignored: kube-proxy does not read it; did you mean AllowServiceExternalIPs?",
			}
		}},
		"a second document": {header + "mode: nftables\n---\nmode: ipvs\n", "-config FILE", func(c *config) {
			c.Mode = "nftables"
			c.warnings = []string{"only the first YAML document is read, and the file has more"}
		}},
		"an empty second document": {"# Comment.\n---\n" + header + "mode: nftables\n---\n# None.\n", "-config FILE", func(c *config) { c.Mode = "nftables" }},
		"no gates":                 {header + "featureGates: null\n", "-config FILE", func(*config) {}},
		"gate without value":       {header + "featureGates: {AllowServiceExternalIPs: null}\n", "-config FILE", func(c *config) { c.FeatureGates = map[string]bool{"AllowServiceExternalIPs": false} }},
		"gates by flags": {"", "--feature-gates=NFTablesNetlink=true,AllowServiceExternalIPs=true, --feature-gates AllowServiceExternalIPs=0", func(c *config) {
			c.FeatureGates = map[string]bool{"AllowServiceExternalIPs": false, "NFTablesNetlink": true}
			c.notes = []string{"feature gate NFTablesNetlink has no effect: This program always uses netlink, and never runs nft."}
		}},
		"loopback": {header + "mode: nftables\nnodePortAddresses: [primary, 127.0.0.0/8]\n", "-config FILE", func(c *config) {
			c.Mode, c.NodePortAddresses = "nftables", []string{"primary", "127.0.0.0/8"}
		}},
		"no loopback address": {header + "nodePortAddresses: [primary, 127.1.0.0/16]\niptables: {localhostNodePorts: false}\n", "-config FILE", func(c *config) {
			c.NodePortAddresses, *c.IPTables.LocalhostNodePorts = []string{"primary", "127.1.0.0/16"}, false
			c.warnings = []string{"nodePortAddresses: 127.1.0.0/16 selects no address: name single loopback addresses, such as 127.1.0.1/32"}
		}},
		"three ranges": {header + "clusterCIDR: '10.0.0.0/8,fd00::/64,192.168.0.0/16'\n", "-config FILE", func(c *config) {
			c.ClusterCIDR = "10.0.0.0/8,fd00::/64,192.168.0.0/16"
			c.notes = []string{"clusterCIDR: all 3 ranges count; kube-proxy takes one of each IP family"}
		}},
		"ranges that do not count": {header + "detectLocalMode: NodeCIDR\nclusterCIDR: '10.0.0.0/8,192.168.0.0/16'\n", "-config FILE", func(c *config) {
			c.DetectLocalMode, c.ClusterCIDR = "NodeCIDR", "10.0.0.0/8,192.168.0.0/16"
		}},
		"ports": {"", "-healthz-bind-address 192.0.2.1 -healthz-port 1 -metrics-port 0 -logging-format json -v 2", func(c *config) {
			c.HealthzBindAddress, c.healthzPort, c.metricsPort, c.Logging.Verbosity, c.Logging.Format = "192.0.2.1", 1, 0, 2, "json"
		}},
		"ports and a file": {header, "-config FILE -healthz-port 1 -metrics-port 0 -logging-format json", func(c *config) {
			c.Logging.Format = "json"
			c.warnings = []string{"flag -healthz-port is ignored because of -config", "flag -metrics-port is ignored because of -config"}
		}},
		"fallback":              {header, "-config FILE -local-fallback none", func(c *config) { c.LocalFallback = endpoints.FallbackNone }},
		"kube-proxy's defaults": {header + "oomScoreAdj: -999\nconfigSyncPeriod: 15m\nclientConnection: {contentType: application/vnd.kubernetes.protobuf}\nlogging: {flushFrequency: 5s, format: text}\n", "-config FILE", func(*config) {}},
		"a section that is not used": {header + "mode: nftables\nipvs: {tcpTimeout: -1s, excludeCIDRs: [x]}\niptables: {syncPeriod: 1s, minSyncPeriod: 2s}\n", "-config FILE", func(c *config) {
			c.Mode, c.IPVS.TCPTimeout, c.IPVS.ExcludeCIDRs = "nftables", seconds(-1), []string{"x"}
			c.warnings = []string{`ipvs.excludeCIDRs[0] is ignored: must be a valid CIDR: netip.ParsePrefix("x"): no '/'`}
			c.IPTables.SyncPeriod, c.IPTables.MinSyncPeriod = seconds(1), seconds(2)
		}},
		"lists by flags": {"", "--nodeport-addresses=primary --nodeport-addresses=10.0.0.0/8,all", func(c *config) { c.NodePortAddresses = []string{"primary", "10.0.0.0/8", "all"} }},
		"flags": {"", "--proxy-mode iptables --kubeconfig /k --master https://192.0.2.1:6443 --cluster-cidr 10.0.0.0/8 --nodeport-addresses 10.0.0.0/8,fd00::/8 --masquerade-all " +
			"--healthz-bind-address 0.0.0.0:1 --metrics-bind-address 127.0.0.1:2 --detect-local-mode NodeCIDR --conntrack-min 7 --conntrack-udp-timeout 5s --oom-score-adj -998 --init-only",
			func(c *config) {
				c.Mode, c.ClientConnection.Kubeconfig, c.master, c.initOnly = "iptables", "/k", "https://192.0.2.1:6443", true
				c.DetectLocalMode, c.ClusterCIDR = "NodeCIDR", "10.0.0.0/8"
				c.IPTables.MasqueradeAll, c.NFTables.MasqueradeAll = true, true
				c.HealthzBindAddress, c.MetricsBindAddress, c.NodePortAddresses = "0.0.0.0:1", "127.0.0.1:2", []string{"10.0.0.0/8", "fd00::/8"}
				*c.Conntrack.Min, c.Conntrack.UDPTimeout = 7, seconds(5)
				c.warnings = []string{"flag -oom-score-adj is ignored"}
			},
		},
		"ipvs": {header + "mode: ipvs\nipvs: {excludeCIDRs: [10.1.0.0/16], minSyncPeriod: 1s, scheduler: wlc, strictARP: true, syncPeriod: 20s, tcpFinTimeout: 2s, tcpTimeout: 3s, udpTimeout: 4s}\n", "-config FILE -ipvs-scheduler rr", func(c *config) {
			c.Mode = "ipvs"
			c.IPVS = v1alpha1.KubeProxyIPVSConfiguration{
				SyncPeriod: seconds(20), MinSyncPeriod: seconds(1), Scheduler: "wlc", ExcludeCIDRs: []string{"10.1.0.0/16"},
				StrictARP: true, TCPTimeout: seconds(3), TCPFinTimeout: seconds(2), UDPTimeout: seconds(4),
			}
			c.warnings = []string{"flag -ipvs-scheduler is ignored because of -config"}
		}},
		"draining": {header, "-config FILE -ipvs-drain-timeout=-1s", func(c *config) {
			c.DrainTimeout = -time.Second
		}},
		"ipvs by flags": {"", "--proxy-mode=ipvs --ipvs-scheduler=wlc --ipvs-sync-period=20s --ipvs-min-sync-period=1s --ipvs-exclude-cidrs=10.1.0.0/16,fd00::/64 " +
			"--ipvs-strict-arp --ipvs-tcp-timeout=3s --ipvs-tcpfin-timeout=2s --ipvs-udp-timeout=4s --iptables-sync-period=5s --cleanup --cleanup-ipvs=false",
			func(c *config) {
				c.Mode, c.cleanup, c.cleanupIPVS = "ipvs", true, false
				c.IPVS = v1alpha1.KubeProxyIPVSConfiguration{
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
			want := newConfig("")
			tc.want(want)
			got.parsed = parsed{}
			if diff := cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
				t.Errorf("configuration (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBadConfig(t *testing.T) { //nolint:funlen // a table
	t.Parallel()
	for _, tc := range []struct{ file, flags, want string }{
		{"", "-config /none", "no such file"},
		{"", "more", `unexpected argument "more"`},
		{"", "--ipvs_drain_services=true", "flag -ipvs-drain-services is gone: remove it, since a deleted Service"},
		{"", "-feature-gates AllowServiceExternalIPs", "malformed pair, expect string=bool"},
		{"", "-feature-gates AllowServiceExternalIPs=off", "invalid value of AllowServiceExternalIPs: off"},
		{header + "featureGates: {AllowServiceExternalIPs: 'false'}", "-config FILE", `featureGates: {"AllowServiceExternalIPs":"false"}: must have fields that are true or false`},
		{header + "featureGates: [AllowServiceExternalIPs]", "-config FILE", `featureGates: ["AllowServiceExternalIPs"]: must have fields`},
		{"", "-conntrack-min -1", "conntrack.min: -1: must be greater than or equal to 0"},
		{"", "-cleanup -init-only", "exclude each other"},
		{"", "-healthz-port 65536", "-healthz-port: 65536: must be within"},
		{"", "-healthz-port -1", "-healthz-port: -1: must be greater than or equal to 0"},
		{"", "-local-fallback all", "terminating"},
		{"", "-proxy-mode fast", `mode "fast": want nftables, iptables, ipvs, or empty`},
		{header + "ipvs: {scheduler: 3}", "-config FILE", "ipvs.scheduler: 3: must be a string"},
		{header + "ipvs: {excludeCIDRs: 10.0.0.0/8}", "-config FILE", `ipvs.excludeCIDRs: "10.0.0.0/8": must be a list of strings`},
		{header + "mode: ipvs\nipvs: {excludeCIDRs: [10.0.0.0/8, x]}", "-config FILE", "ipvs.excludeCIDRs[1]: must be a valid CIDR"},
		{header + "ipvs: {tcpTimeout: soon}", "-config FILE", `ipvs.tcpTimeout: "soon": must be a duration`},
		{"kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1", "-config FILE", "want KubeProxyConfiguration"},
		{header + "mode: [a]", "-config FILE", `mode: ["a"]: must be a string`},
		{header + "mode: 5", "-config FILE", "mode: 5: must be a string"},
		{header + "Mode: 5\niptables: {syncPeriod: soon}", "-config FILE", `iptables.syncPeriod: "soon": must be a duration`},
		{header + "iptables: 3", "-config FILE", "iptables: 3: must have fields"},
		{header + "conntrack: {maxPerCore: -5}", "-config FILE", "conntrack.maxPerCore: -5: must be greater than or equal to 0"},
		{header + "conntrack: {maxPerCore: 3000000000}", "-config FILE", "conntrack.maxPerCore: 3000000000: must be a whole number"},
		{header + "conntrack: {maxPerCore: 1.5}", "-config FILE", "conntrack.maxPerCore: 1.5: must be a whole number"},
		{header + "conntrack: {udpTimeout: -1s}", "-config FILE", "conntrack.udpTimeout: -1s: must be greater"},
		{header + "mode: nftables\nnftables: {minSyncPeriod: 2m, syncPeriod: 1m}", "-config FILE", "nftables.minSyncPeriod: 2m0s is longer than nftables.syncPeriod, 1m0s"},
		{header + "nftables: {minSyncPeriod: 2m}", "-config FILE", "nftables.minSyncPeriod: 2m0s is longer"},
		{header + "mode: ipvs\nipvs: {minSyncPeriod: 2m}", "-config FILE", "ipvs.minSyncPeriod: 2m0s is longer"},
		{header + "mode: iptables\niptables: {syncPeriod: -1s}", "-config FILE", "iptables.syncPeriod: -1s is negative"},
		{header + "iptables: {masqueradeBit: 32}", "-config FILE", "iptables.masqueradeBit: 32: must be within the range [0, 31]"},
		{header + "metricsBindAddress: '[::1]'", "-config FILE", `metricsBindAddress: "[::1]": must be an IP address and a port`},
		{header + "metricsBindAddress: '127.0.0.1:'", "-config FILE", `metricsBindAddress: "127.0.0.1:": must be`},
		{header + "metricsBindAddress: '127.0.0.1:0'", "-config FILE", `metricsBindAddress: "127.0.0.1:0": must be`},
		{header + "metricsBindAddress: localhost", "-config FILE", `metricsBindAddress: "localhost": must be`},
		{header + "healthzBindAddress: ':10256'", "-config FILE", `healthzBindAddress: ":10256": must be`},
		{header + "bindAddress: host", "-config FILE", `bindAddress: "host": must be an IP address`},
		{header + "nodePortAddresses: [primary, all, primary]", "-config FILE", `nodePortAddresses[2]: the word "primary" is repeated`},
		{header + "nodePortAddresses: [10.0.0.0/8, loopback]", "-config FILE", `nodePortAddresses[1]: want primary, localhost, all or a CIDR: "loopback"`},
		{header + "nodePortAddresses: [1]", "-config FILE", "nodePortAddresses: [1]: must be a list of strings"},
		{header + "clusterCIDR: 10.0.0.1", "-config FILE", `clusterCIDR: "10.0.0.1": must be a CIDR`},
		{header + "clusterCIDR: ','", "-config FILE", `clusterCIDR: "": must be a CIDR`},
		{header + "clusterCIDR: '10.0.0.0/8,'", "-config FILE", `clusterCIDR: "": must be a CIDR`},
		{header + "clusterCIDR: 10.0.0.0/8 fd00::/64", "-config FILE", `clusterCIDR: "10.0.0.0/8 fd00::/64": must be a CIDR`},
		{header + "detectLocalMode: Magic", "-config FILE", `detectLocalMode: "Magic"`},
		{header + "clientConnection: {burst: -1}", "-config FILE", "clientConnection.burst: -1: must be"},
		{header + "oomScoreAdj: 1001", "-config FILE", "oomScoreAdj: 1001: must be within the range [-1000, 1000]"},
		{header + "logging: {format: xml}", "-config FILE", `logging.format: "xml": must be text or json`},
		{header + "logging: {verbosity: -1}", "-config FILE", "logging.verbosity: -1: must be"},
		{"- a", "-config FILE", "want an object with fields"},
		{header + "# " + strings.Repeat("x", 2*maxFile), "-config FILE", "larger than 4194304 bytes"},
		{"apiVersion: \"a\\nb\\e[31m\"\nkind: x", "-config FILE", `apiVersion "a\nb\u001b[31m", kind "x": want KubeProxyConfiguration`},
		{"{}", "-config FILE", "apiVersion null, kind null: want KubeProxyConfiguration"},
		{header + "featureGates: {\"a\\nb\\e[31m\": 3}", "-config FILE", `{"a\nb\u001b[31m":3}: must have fields that are true or false`},
		{header + "clientConnection: {qps: .nan}", "-config FILE", "NaN"},
		{"", "-kube-api-qps NaN", "must be a number"},
		{"a: [", "-config FILE", "did not find expected node content"},
	} {
		_, out, err := readConfig(t, tc.file, tc.flags)
		if err == nil || !strings.Contains(out, tc.want) {
			t.Errorf("%s %.200q: got error %v, output\n%s\nwant %s", tc.flags, tc.file, err, out, tc.want)
		}
		if strings.Count(out, "\n") != 1 || strings.Contains(out, "struct") || strings.Contains(out, "\x1b") {
			t.Errorf("%s %.200q: got output\n%s\nwant one line without types of Go", tc.flags, tc.file, out)
		}
	}
}

// TestAllWrongValues checks that one error names all wrong values, of flags, of the file, and of both together.
func TestAllWrongValues(t *testing.T) {
	t.Parallel()
	const bad = "nodePortAddresses: [x]\nconntrack: {min: many, udpTimeout: -1s}\nmode: fast\nfeatureGates: {WinDSR: false}\niptables: 3\n"
	ofFile := []string{"nodePortAddresses[0]: ", "config.yaml: conntrack.min: ", "conntrack.udpTimeout: ", "mode ", "featureGates: ", "config.yaml: iptables: "}
	for _, tc := range []struct {
		file, flags string
		want        []string
	}{
		{"", "more -v x -profiling=yes -conntrack-min=-1 -cluster-cidr y -healthz-port 99999 -interface z -cleanup -init-only -local-fallback all", []string{
			`unexpected argument "more"`, "-v: ", "-profiling: ", "conntrack.min: ", "clusterCIDR: ", "-healthz-port: ", "flag -interface ", "-cleanup and -init-only ", "-local-fallback: ",
		}},
		{header + bad, "-config FILE", ofFile},
		// The flag -conntrack-min does not count with a file, and is checked all the same.
		{header + bad, "-v x -config FILE -hostname-override= -netsh -conntrack-min=few", append(ofFile, "-v: ", "flag -netsh ", "-conntrack-min: ")},
		{"a: [", "-v x -config FILE", []string{"-v: ", "config.yaml: "}},
	} {
		_, out, err := readConfig(t, tc.file, tc.flags)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if err == nil || len(lines) != len(tc.want) {
			t.Errorf("%s: got error %v, %d lines, want %d", tc.flags, err, len(lines), len(tc.want))
		}
		for _, want := range tc.want {
			if !strings.Contains("\n"+out, "\n"+want) && !strings.Contains(filepath.ToSlash(out), "/"+want) {
				t.Errorf("%s: got\n%s\nwant a line that begins with %s", tc.flags, out, want)
			}
		}
	}
}
