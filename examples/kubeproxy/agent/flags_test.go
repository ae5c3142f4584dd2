package agent

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestFlagForms checks forms of flags that kube-proxy takes, in manifests and unit files.
func TestFlagForms(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-v4":                                    "-v=4",
		"--v 4":                                  "-v=4",
		"--v=4":                                  "-v=4",
		"-v=4":                                   "-v=4",
		"--proxy_mode=nftables":                  "-proxy-mode=nftables",
		"--proxy_mode nftables":                  "-proxy-mode=nftables",
		"--cluster_cidr=10.0.0.0/8":              "-cluster-cidr=10.0.0.0/8",
		"--hostname_override=node_1":             "-hostname-override=node_1",
		"--hostname-override node_1":             "-hostname-override=node_1",
		"--conntrack_tcp_timeout_established=1h": "-conntrack-tcp-timeout-established=1h",
		"--masquerade-all=True --profiling=t":    "-masquerade-all -profiling",
		"--masquerade_all --profiling=false":     "-masquerade-all",
		"--conntrack-min=0x20000":                "-conntrack-min=131072",
		"--oom-score-adj -998":                   "-oom-score-adj=-998",
		"EMPTY --proxy-mode=nftables EMPTY -v2":  "-proxy-mode=nftables -v=2",
		"--hostname-override EMPTY -v2":          "-v=2",
		"--vmodule=proxier=4":                    "-vmodule=proxier=4",
		"--nodeport-addresses=10.0.0.0/8 --nodeport_addresses=primary": "-nodeport-addresses=10.0.0.0/8,primary",
	} {
		got, out, err := readArguments(args)
		if err != nil {
			t.Errorf("%s: got error %v, output %s", args, err, out)
			continue
		}
		wanted, out, err := readArguments(want)
		if err != nil {
			t.Fatalf("%s: got error %v, output %s", want, err, out)
		}
		if diff := cmp.Diff(wanted, got, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
			t.Errorf("%s: configuration (-by %s, +got):\n%s", args, want, diff)
		}
	}
}

// readArguments reads a command line, in which EMPTY stands for an empty argument.
func readArguments(line string) (*config, string, error) {
	args := strings.Fields(line)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "EMPTY", "")
	}
	var out strings.Builder
	c, err := newConfig("linux").readCommandLine(args, &out)
	return c, out.String(), err
}

// TestBadFlags checks that a bad command line has one line of output, which says what is bad.
func TestBadFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-vmany":                   "unknown flag: --vmany; -help lists all",
		"-v4x":                     `-v: "4x": must be a whole number from 0 on`,
		"-v":                       "flag needs an argument: 'v' in -v",
		"--proxy_mod=nftables":     "unknown flag: --proxy_mod; did you mean --proxy-mode?",
		"--profiling false":        `unexpected argument "false"`,
		"-- --proxy-mode=nftables": `unexpected argument "--proxy-mode=nftables"`,
		"--version=raw2":           `-version: "raw2": must be true, false or raw`,
		"--version=v1.37.1":        "must be true, false or raw",
		"--profiling=yes":          `-profiling: "yes": must be true or false`,
		"--conntrack-tcp-timeout-established=86400": "must be a duration such as 1m30s",
		"--cleanup-iptables":                        "unknown flag: --cleanup-iptables",
	} {
		_, out, err := readArguments(args)
		if err == nil || !strings.Contains(out, want) || strings.Count(out, "\n") != 1 {
			t.Errorf("%s: got error %v, output\n%s\nwant one line with %s", args, err, out, want)
		}
	}
}

// TestVersionForms checks -version as kube-proxy has it.
func TestVersionForms(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--version": "kubeproxy github.com/vipkit/vipkit/examples/kubeproxy ", "-version=true": "kubeproxy ", "--version=1 --proxy-mode=fast": "kubeproxy ",
		"--version=raw": `version.Info{Major:"`, "--version=raw --config=/none": `version.Info{Major:"`,
	} {
		var out, log strings.Builder
		if status := Main(strings.Fields(args), &out, &log); status != 0 || !strings.HasPrefix(out.String(), want) || strings.Count(out.String(), "\n") != 1 || log.Len() > 0 {
			t.Errorf("%s: got status %d, output %s, log %s; want 0 and %s", args, status, &out, &log, want)
		}
		if strings.Contains(args, "raw") && (!strings.Contains(out.String(), ` GoVersion:"go1.`) || !strings.Contains(out.String(), ` GitVersion:"`)) {
			t.Errorf("%s: got %s, want versions", args, &out)
		}
	}
	if c, out, err := readArguments("--version=false"); err != nil || c.version != "" {
		t.Errorf("--version=false: got %q, error %v, output %s; want no version", c.version, err, out)
	}
}
