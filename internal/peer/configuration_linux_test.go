package peer_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/vipkit/vipkit/internal/peer/controlplane"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestConfigurations compares what the agent accepts with what kube-proxy accepts.
func TestConfigurations(t *testing.T) {
	theirs, ours := controlplane.Build(t, ".", "k8s.io/kubernetes/cmd/kube-proxy"), controlplane.Build(t, "../../examples/kubeproxy", "github.com/vipkit/vipkit/examples/kubeproxy")
	t.Run("files", func(t *testing.T) { testFiles(t, theirs, ours) })
	t.Run("fields", func(t *testing.T) { testFields(t, ours) })
	t.Run("flags", func(t *testing.T) { testFlags(t, theirs, ours) })
	t.Run("command lines", func(t *testing.T) { testCommandLines(t, theirs, ours) })
}

// testFiles checks that the agent accepts the configurations that kube-proxy accepts, and refuses the
// others, apart from intended differences.
func testFiles(t *testing.T, theirs, ours string) {
	differences := map[string]string{
		"featureGates: {Some: true}":                        "kube-proxy refuses unknown gates; the agent warns, as gates of other versions have no effect",
		"featureGates: {AllAlpha: true}":                    "gates of other programs depend on each other",
		"mode: ipvs\nipvs: {scheduler: fast}":               "kube-proxy finds out later",
		"showHiddenMetricsForVersion: '1.1'":                "the value depends on the version, and is ignored",
		"logging: {flushFrequency: -1}":                     "ignored",
		"clusterCIDR: '10.0.0.0/8,10.0.0.0/8'":              "the agent takes any number of ranges",
		"clusterCIDR: '10.0.0.0/8,fd00::/64,::/0'":          "the agent takes any number of ranges",
		"clusterCIDR: 'fd00::/64,fd01::/64'":                "the agent takes any number of ranges",
		"clusterCIDR: 010.0.0.0/8":                          "the agent refuses numbers that some programs read as octal ones",
		"bindAddress: 010.0.0.1":                            "the same",
		"showHiddenMetricsForVersion: x":                    "ignored",
		"showHiddenMetricsForVersion: '1.36'":               "the value depends on the version, which this kube-proxy does not know",
		"logging: {vmodule: 3}":                             "ignored",
		"logging: {options: {json: {infoBufferSize: 1Ki}}}": "ignored",
	}
	folder := t.TempDir()
	accepts := func(program, file string) bool {
		// It validates the configuration, and does nothing else.
		return exec.CommandContext(t.Context(), program, "--config", file, "--write-config-to", filepath.Join(folder, "written")).Run() == nil
	}
	file := filepath.Join(folder, "config.yaml")
	for _, settings := range configurations() {
		text := fileHeader + settings + "\n"
		testenv.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, isDifferent := differences[settings]
		if they, we := accepts(theirs, file), accepts(ours, file); (they != we) != isDifferent {
			t.Errorf("%q: kube-proxy accepts it: %t, the agent: %t, want a difference: %t", settings, they, we, isDifferent)
		}
	}
}

// configurations returns settings, good and bad ones.
func configurations() []string {
	const list = `clusterCIDR: 010.0.0.0/8; bindAddress: 010.0.0.1; showHiddenMetricsForVersion: x; showHiddenMetricsForVersion: '1.36'; logging: {vmodule: 3}
clusterCIDR: 'fd00::/64,10.0.0.0/8'; clusterCIDR: 'fd00::/64,fd01::/64'; clusterCIDR: ','; clusterCIDR: '10.0.0.0/8,'; clusterCIDR: ''
detectLocalMode: NodeCIDR|clusterCIDR: '10.0.0.0/8,10.0.0.0/8,x'; detectLocalMode: InterfaceNamePrefix; detectLocalMode: ClusterCIDR
detectLocalMode: BridgeInterface|detectLocal: {bridgeInterface: cni0}|clusterCIDR: x; logging: {vmodule: [{filePattern: a, verbosity: 2}]}
logging: {options: {text: {splitStream: true}}}; logging: {options: {json: {infoBufferSize: 1Ki}}}; configSyncPeriod: 1m; portRange: '1-2'
hostnameOverride: A_b; windowsRunAsService: false; winkernel: {networkName: a}; winkernel: 3; enableProfiling: null; healthzBindAddress: '[::]:1'
conntrack: {tcpBeLiberal: true}; conntrack: {udpStreamTimeout: -1s}; conntrack: {tcpCloseWaitTimeout: null}; ipvs: null; nodePortAddresses: null
featureGates: {Some: true}; featureGates: {AllAlpha: true}; mode: ipvs|ipvs: {scheduler: fast}
showHiddenMetricsForVersion: '1.1'; logging: {flushFrequency: -1}; clusterCIDR: '10.0.0.0/8,10.0.0.0/8'; clusterCIDR: '10.0.0.0/8,fd00::/64,::/0'
metricsBindAddress: 127.0.0.1; metricsBindAddress: '::1'; metricsBindAddress: '[::1]'; metricsBindAddress: '[::1]:1'
metricsBindAddress: '127.0.0.1:'; metricsBindAddress: '127.0.0.1:0'; metricsBindAddress: localhost:1; metricsBindAddress: '10249'
healthzBindAddress: ':10256'; healthzBindAddress: 0.0.0.0; bindAddress: host; bindAddress: '::'
conntrack: {maxPerCore: -5}; conntrack: {maxPerCore: 1.5}; conntrack: {min: -1}; conntrack: {udpTimeout: -1s}; conntrack: {tcpEstablishedTimeout: -1s}
mode: iptables|iptables: {minSyncPeriod: 2m, syncPeriod: 1m}; mode: nftables|iptables: {minSyncPeriod: 2m, syncPeriod: 1m}
mode: nftables|nftables: {minSyncPeriod: 2m, syncPeriod: 1m}; mode: ipvs|ipvs: {minSyncPeriod: 2m}; mode: iptables|iptables: {syncPeriod: -1s}
mode: nftables|ipvs: {tcpTimeout: -1s}; mode: ipvs|ipvs: {tcpTimeout: -1s}; iptables: {syncPeriod: 30}
iptables: {masqueradeBit: 32}; mode: iptables|nftables: {masqueradeBit: 32}; mode: nftables|nftables: {masqueradeBit: -1}
nodePortAddresses: [localhost]; nodePortAddresses: [primary, 127.0.0.0/8]; nodePortAddresses: [all, localhost]; nodePortAddresses: [primary, primary]
nodePortAddresses: [10.0.0.0/8, 10.0.0.0/8]; nodePortAddresses: [x]; nodePortAddresses: [10.0.0.1]; nodePortAddresses: primary
clusterCIDR: 10.0.0.1; clusterCIDR: 10.0.0.0/8; clusterCIDR: '10.0.0.0/8,fd00::/64'; detectLocalMode: Magic; detectLocalMode: NodeCIDR
detectLocalMode: BridgeInterface; detectLocalMode: InterfaceNamePrefix|detectLocal: {interfaceNamePrefix: veth}
clientConnection: {burst: -1}; clientConnection: {qps: -1}; oomScoreAdj: 1001; oomScoreAdj: -1000; configSyncPeriod: -1s
logging: {format: xml}; logging: {format: json}; logging: {verbosity: -1}; logging: {flushFrequency: 0}
featureGates: {AllowServiceExternalIPs: null}; featureGates: {WinDSR: false}; featureGates: {NFTablesNetlink: false}
mode: ipvs|featureGates: {KubeProxyIPVS: false}; mode: nftables|featureGates: {KubeProxyIPVS: false}
future: 1; mode: iptables|mode: nftables; iptables: 3; mode: 5; mode: fast; Mode: nftables; enableProfiling: 'yes'
ipvs: {excludeCIDRs: [x]}; mode: ipvs|ipvs: {excludeCIDRs: [x]}`
	var all []string
	for settings := range strings.FieldsFuncSeq(list, func(c rune) bool { return c == ';' || c == '\n' }) {
		all = append(all, strings.ReplaceAll(strings.TrimSpace(settings), "|", "\n"))
	}
	return all
}

// TestAllocatorCommand runs the example command with a cluster and its ranges.
func TestAllocatorCommand(t *testing.T) {
	program, kubeconfig := controlplane.Build(t, ".", "github.com/vipkit/vipkit/examples/allocator"), filepath.Join(t.TempDir(), "kubeconfig")
	cp := controlplane.Start(t, controlplane.Options{ServiceRange: "10.99.0.0/24,fd00:99::/112"})
	controlplane.Kubeconfig(t, kubeconfig, cp.Config().Host, cp.Config().BearerToken)
	store := "kubernetes:" + kubeconfig
	awaitAddress(t, cp, "10.99.0.1")
	for _, c := range []struct {
		command string
		want    []string // parts of its output
		fails   bool
	}{
		{command: "allocate services/default/web 10.99.0.10 fd00:99::10", want: []string{"10.99.0.10\nfd00:99::10\n"}},
		{command: "allocate nodes/node-1 10.99.0.10", want: []string{`10.99.0.10 is already allocated to "services/default/web"`}, fails: true},
		{command: "allocate nodes/node-1 10.99.0.1", want: []string{`already allocated to "services/default/kubernetes"`}, fails: true},
		{command: "show", want: []string{"10.99.0.0/24: 254 keys, 2 taken", "fd00:99::/112: 65535 keys, 1 taken", `"services/default/web", bound`}},
		{command: "release services/default/web 10.99.0.10"},
		{command: "allocate nodes/node-1 10.99.0.10", want: []string{"10.99.0.10\n"}},
	} {
		args := append([]string{"-store", store}, strings.Fields(c.command)...)
		out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
		if (err != nil) != c.fails {
			t.Errorf("%s: got error %v, want an error: %t\n%s", c.command, err, c.fails, out)
		}
		for _, part := range c.want {
			if !strings.Contains(string(out), part) {
				t.Errorf("%s: got\n%s, want also %q", c.command, out, part)
			}
		}
	}
}

// awaitAddress waits until the API server has an IPAddress. It is ready before it has created
// its own Service.
func awaitAddress(t *testing.T, cp *controlplane.ControlPlane, name string) {
	t.Helper()
	client, err := kubernetes.NewForConfig(cp.Config())
	testenv.NoError(t, err)
	testenv.Eventually(t, patience, "the API server has its own address "+name, func() error {
		_, err := client.NetworkingV1().IPAddresses().Get(t.Context(), name, metav1.GetOptions{})
		return err
	})
}
