package agent

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vipkit/vipkit/backends/kernelspace"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// readOn returns the configuration of flags on an operating system. FILE stands for the path of a
// file with a content.
func readOn(t *testing.T, system, file, flags string) (*config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	testenv.NoError(t, os.WriteFile(path, []byte(file), 0o600))
	var out strings.Builder
	c, err := newConfig(system).readCommandLine(strings.Fields(strings.ReplaceAll(flags, "FILE", path)), &out)
	if err != nil && !strings.Contains(out.String(), err.Error()) {
		t.Errorf("%s: output %q does not have the error %v", flags, &out, err)
	}
	return c, err
}

// TestKernelspaceOptions checks what becomes of kube-proxy's flags on Windows, and of the section
// winkernel.
func TestKernelspaceOptions(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("ProgramData", folder)
	state := filepath.Join(folder, "vipkit", "vipkit.kernelspace")
	sources := []netip.Addr{netip.MustParseAddr("10.244.0.2")}
	const section = header + "mode: kernelspace\nwinkernel: {networkName: nat, sourceVip: 10.244.0.2, enableDSR: true, forwardHealthCheckVip: true, rootHnsEndpointName: "
	all := func(endpoint string) kernelspace.Options {
		return kernelspace.Options{
			Network: "nat", SourceVIPs: sources, DSR: true, StateFile: state,
			HealthChecks: kernelspace.HealthChecks{Endpoint: endpoint, Port: 10256},
		}
	}
	for name, tc := range map[string]struct {
		variable, file, flags string
		want                  kernelspace.Options
	}{
		"only the network": {"", "", "--network-name=l2", kernelspace.Options{Network: "l2", StateFile: state}},
		"variable":         {"net", "", "--proxy-mode=kernelspace", kernelspace.Options{Network: "net", StateFile: state}},
		"flag wins":        {"net", "", "--network-name=l2", kernelspace.Options{Network: "l2", StateFile: state}},
		"all flags":        {"", "", "--network-name nat --source-vip 10.244.0.2 --enable-dsr --forward-healthcheck-vip --root-hnsendpoint-name other", all("other")},
		"default endpoint": {"", "", "--network-name nat --source-vip 10.244.0.2 --enable-dsr=true --forward-healthcheck-vip", all("cbr0")},
		"file":             {"", section + "x}", "--config FILE", all("x")},
		"kubeadm's file":   {"net", kubeadm, "--config FILE", kernelspace.Options{Network: "net", StateFile: state}},
		"no endpoint":      {"", section + `""}`, "--config FILE", all("cbr0")},
		"port of healthz": {"", "", "--network-name l2 --forward-healthcheck-vip --healthz-bind-address 0.0.0.0:9", kernelspace.Options{
			Network: "l2", StateFile: state, HealthChecks: kernelspace.HealthChecks{Endpoint: "cbr0", Port: 9},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBE_NETWORK", tc.variable)
			c, err := readOn(t, windowsSystem, tc.file, tc.flags)
			testenv.NoError(t, err)
			tc.want.IPv4Fallback = true
			if diff := cmp.Diff(tc.want, c.kernelspaceOptions(), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
			if modes := c.candidates(); len(modes) != 1 || modes[0].mode != kernelspaceMode {
				t.Errorf("modes: got %v, want kernelspace", modes)
			}
		})
	}
}

// TestUserspaceOptions checks how mode userspace adds addresses.
func TestUserspaceOptions(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("ProgramData", folder)
	c, err := readOn(t, windowsSystem, "", "--proxy-mode userspace -interface Ethernet -netsh")
	testenv.NoError(t, err)
	got := c.userspaceOptions()
	want := userspace.AddressOptions{Interface: "Ethernet", Netsh: true, State: filepath.Join(folder, "vipkit", "vipkit.userspace")}
	if got.Capture != userspace.Addresses || got.Addresses != want {
		t.Errorf("got capture %v, %+v, want addresses, %+v", got.Capture, got.Addresses, want)
	}
}

// TestWrongSystem checks that errors for settings that do not fit the operating system, or each other,
// name the flag or the field.
func TestWrongSystem(t *testing.T) {
	t.Setenv("KUBE_NETWORK", "")
	for _, tc := range []struct{ system, file, flags, want string }{
		{"linux", "", "-interface x", "flag -interface is for Windows"},
		{"linux", "", "-netsh", "flag -netsh is for Windows"},
		{windowsSystem, "", "", "winkernel.networkName (flag -network-name) or the variable KUBE_NETWORK is required"},
		{windowsSystem, header, "-config FILE", "winkernel.networkName"},
		{windowsSystem, "", "-network-name x -ipvs-drain-timeout=1s", "flag -ipvs-drain-timeout is for Linux"},
		{windowsSystem, "", "-network-name x -init-only", "flag -init-only is for Linux"},
		{windowsSystem, "", "-network-name x -cleanup-ipvs", "flag -cleanup-ipvs is for Linux"},
		{windowsSystem, "", "-network-name x -service-metrics", "flag -service-metrics is for Linux"},
		{windowsSystem, "", "-proxy-mode iptables", `mode "iptables": on Windows, want kernelspace, userspace`},
		{windowsSystem, header + "mode: nftables", "-config FILE", `mode "nftables": on Windows`},
		{windowsSystem, "", "-network-name x -source-vip y", "winkernel.sourceVip (flag -source-vip)"},
		{windowsSystem, "", "-network-name x -interface y", "flags -interface and -netsh are for mode userspace"},
		{windowsSystem, "", "-proxy-mode userspace -enable-dsr", "winkernel.enableDSR"},
		{windowsSystem, "", "-network-name x -forward-healthcheck-vip -healthz-bind-address y", "healthzBindAddress"},
	} {
		_, err := readOn(t, tc.system, tc.file, tc.flags)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s, %s %q: got error %v, want one with %s", tc.system, tc.flags, tc.file, err, tc.want)
		}
	}
	for _, tc := range []struct{ system, file, flags string }{
		{windowsSystem, "", "-network-name x -cluster-cidr 10.244.0.0/16 -iptables-sync-period 10s -hostname-override y"},
		{windowsSystem, "", "-proxy-mode userspace -nodeport-addresses primary -v 4"},
	} {
		if _, err := readOn(t, tc.system, tc.file, tc.flags); err != nil {
			t.Errorf("%s, %s: got error %v, want none", tc.system, tc.flags, err)
		}
	}
}

// TestSharedFile checks that nodes with Linux and nodes with Windows can share a file: what
// is for the other ones is noted.
func TestSharedFile(t *testing.T) {
	t.Parallel()
	const file = header + "winkernel: {networkName: nat, rootHnsEndpointName: cbr0}\nwindowsRunAsService: true\n" +
		"ipvs: {scheduler: wlc}\nconntrack: {min: 1}\ndetectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}\n"
	for system, want := range map[string][]string{
		"linux": {"field winkernel.networkName is ignored: it is for Windows", "field windowsRunAsService is ignored: it is for Windows"},
		windowsSystem: {
			"field detectLocalMode is ignored: it is for Linux", "field detectLocal.bridgeInterface is ignored: it is for Linux",
			"field ipvs.scheduler is ignored: it is for Linux", "field conntrack.min is ignored: it is for Linux",
		},
	} {
		c, err := readOn(t, system, file, "-config FILE")
		testenv.NoError(t, err)
		if diff := cmp.Diff(want, c.warnings); diff != "" {
			t.Errorf("warnings on %s (-want +got):\n%s", system, diff)
		}
	}
	c, err := readOn(t, windowsSystem, header+"winkernel: {networkName: nat}\ndetectLocalMode: NodeCIDR\n", "-config FILE")
	testenv.NoError(t, err)
	if o := c.tracker(kernelspaceMode); len(c.warnings) > 0 || !o.LocalTraffic.NodePodCIDRs {
		t.Errorf("NodeCIDR on windows: got warnings %q, %+v, want the pod ranges of the Node", c.warnings, o.LocalTraffic)
	}
	for _, tc := range []struct {
		system, flags string
		want          []string
	}{
		{windowsSystem, "-network-name x -conntrack-min 5 -masquerade-all -ipvs-scheduler rr", []string{"masquerade-all", "ipvs-scheduler", "conntrack-min"}},
		{"linux", "-network-name x -source-vip 10.0.0.1 -enable-dsr -root-hnsendpoint-name x -forward-healthcheck-vip -windows-service", []string{
			"network-name", "source-vip", "enable-dsr", "root-hnsendpoint-name", "forward-healthcheck-vip", "windows-service",
		}},
	} {
		c, err := readOn(t, tc.system, "", tc.flags)
		testenv.NoError(t, err)
		for i, flag := range tc.want {
			if i >= len(c.warnings) || !strings.HasPrefix(c.warnings[i], "flag -"+flag+" is ignored: it is for ") {
				t.Errorf("%s, %s: got warnings %q, want one of -%s", tc.system, tc.flags, c.warnings, flag)
			}
		}
	}
}
