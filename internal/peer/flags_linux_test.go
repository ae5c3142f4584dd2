package peer_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// testFlags checks that the agent has all flags of kube-proxy, as its help names them.
func testFlags(t *testing.T, theirs, ours string) {
	flags := func(program string) (all []string) {
		out, err := exec.CommandContext(t.Context(), program, "--help").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, m := range regexp.MustCompile(`(?m)^ +(?:-[a-z], )?--([a-z][-a-z0-9]*)`).FindAllStringSubmatch(string(out), -1) {
			all = append(all, m[1])
		}
		return all
	}
	known := map[string]bool{"help": true}
	for _, name := range flags(ours) {
		known[name] = true
	}
	all := flags(theirs)
	if len(all) < 50 {
		t.Errorf("kube-proxy: got the flags %q, want all of them", all)
	}
	for _, name := range all {
		if !known[name] {
			t.Errorf("flag --%s of kube-proxy is unknown to the agent", name)
		}
	}
}

// testCommandLines checks that the agent accepts the command lines that kube-proxy accepts, and refuses
// the others, apart from intended differences.
func testCommandLines(t *testing.T, theirs, ours string) {
	written := filepath.Join(t.TempDir(), "written")
	accepts := func(program string, args []string) bool {
		return exec.CommandContext(t.Context(), program, append(args, "--write-config-to", written)...).Run() == nil
	}
	for _, args := range commandLines(t) {
		if they, we := accepts(theirs, args), accepts(ours, args); they != we {
			t.Errorf("%q: kube-proxy accepts it: %t, the agent: %t", args, they, we)
		}
	}
	for line, why := range map[string]string{
		"--feature-gates=Some=true":                "kube-proxy refuses unknown gates; the agent warns, as gates of other versions have no effect",
		"--show-hidden-metrics-for-version=1.1":    "the value depends on the version, and is ignored",
		"--logtostderr=true":                       "kube-proxy once had it, and it says what the agent does",
		"-proxy-mode=nftables":                     "the agent takes one dash, too",
		"--cluster-cidr=10.0.0.0/8,192.168.0.0/16": "the agent takes any number of ranges",
		"--cluster-cidr=010.0.0.0/8":               "the agent refuses numbers that some programs read as octal ones",
	} {
		args := strings.Fields(line)
		if accepts(theirs, args) == accepts(ours, args) {
			t.Errorf("%s: got no difference, want one: %s", line, why)
		}
	}
}

// commandLines returns the command lines of tests of the agent, and forms of flags, good and bad ones.
func commandLines(t *testing.T) (all [][]string) {
	t.Helper()
	const folder = "../../examples/kubeproxy/agent/testdata/operators"
	files, err := filepath.Glob(folder + "/*.args")
	if err != nil || len(files) == 0 {
		t.Fatalf("got files %q, error %v; want some", files, err)
	}
	for _, file := range files {
		if strings.HasPrefix(filepath.Base(file), "windows-") {
			continue
		}
		text, err := os.ReadFile(file)
		testenv.NoError(t, err)
		// Before it writes its configuration, kube-proxy adds no port to an address without one.
		edit := strings.NewReplacer("FILE", strings.TrimSuffix(file, ".args")+".yaml", "--healthz-bind-address=127.0.0.1", "--healthz-bind-address=127.0.0.1:10256")
		all = append(all, strings.Split(edit.Replace(strings.TrimSuffix(string(text), "\n")), "\n"))
	}
	for line := range strings.SplitSeq(`-v4; --v=4; -v=4; --v 4; -v 4; -v4x; -v; -vmany; --proxy_mode=nftables; --proxy_mode nftables; --proxy_mod=nftables
--masquerade-all=True --profiling=t; --masquerade_all --profiling=false; --profiling false; --profiling=yes; --hostname_override=node_1
--conntrack-min=0x20000; --conntrack-min=many; --conntrack-min=-1; --conntrack-min -1; --oom-score-adj -998; --oom-score-adj=-1001
--conntrack-tcp-timeout-established=86400; --conntrack_tcp_timeout_established=1h; --vmodule=proxier=4,server=2; --log_flush_frequency=1s
--logging-format=json; --logging-format=xml; --nodeport-addresses=10.0.0.0/8 --nodeport-addresses=primary; --nodeport-addresses=primary,primary
--cleanup-iptables; --proxy-port-range=1-2; --alsologtostderr=true; --udp-timeout=1s; more; -- --proxy-mode=nftables
EMPTY --proxy-mode=nftables EMPTY; --hostname-override EMPTY -v2; --healthz-port=0; --metrics-bind-address=127.0.0.1:0
--healthz-bind-address=localhost; --healthz-bind-address=127.0.0.1:1; --bind-address=::; --bind-address=host; --kube-api-burst=-1; --kube-api-qps=1.5
--feature-gates=AllowServiceExternalIPs=false; --feature-gates=AllowServiceExternalIPs; --feature-gates=WinDSR=false; --feature-gates=KubeProxyIPVS=false --proxy-mode=ipvs
--detect-local-mode=NodeCIDR; --detect-local-mode=Magic; --detect-local-mode=BridgeInterface; --detect_local_mode=BridgeInterface --pod_bridge_interface=cni0
--proxy-mode=fast; --proxy-mode=ipvs --ipvs-exclude-cidrs=x; --iptables-masquerade-bit=32; --version=false; --version=v1.37.1; --cleanup=false`, "\n") {
		for one := range strings.SplitSeq(line, ";") {
			args := strings.Fields(one)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "EMPTY", "")
			}
			all = append(all, args)
		}
	}
	return all
}

// TestGatesAreKnown looks for feature gates in kube-proxy's code. The document of gates, which a test of
// the agent compares with the agent, must name each.
func TestGatesAreKnown(t *testing.T) {
	document, err := os.ReadFile("../../docs/feature-gates.md")
	testenv.NoError(t, err)
	module, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	testenv.NoError(t, err)
	asked := regexp.MustCompile(`Enabled\(\w*features\.(\w+)\)`)
	found := map[string]bool{}
	for _, folder := range []string{"pkg/proxy", "cmd/kube-proxy"} {
		err := filepath.WalkDir(filepath.Join(strings.TrimSpace(string(module)), folder), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || filepath.Ext(path) != ".go" {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range asked.FindAllSubmatch(text, -1) {
				found[string(m[1])] = true
			}
			return err
		})
		testenv.NoError(t, err)
	}
	if len(found) < 8 {
		t.Errorf("gates that kube-proxy reads: got %v, want more", found)
	}
	for name := range found {
		if !strings.Contains(string(document), "| `"+name+"` |") {
			t.Errorf("feature gate %s, which kube-proxy reads, is not in docs/feature-gates.md", name)
		}
	}
}
