package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestMistakes checks that each mistake in a file has one line, with file and line number, and that
// everything else is served.
func TestMistakes(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "web.yaml"), demo(t))
	const head = "apiVersion: v1\nkind: Service\nmetadata: {name: NAME}\nspec:\n"
	const slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: NAME\n  labels: LABELS\naddressType: IPv4\nports:\n- {name: wbe, port: 8080}\nendpoints: []\n"
	var lines [][]string
	for name, c := range map[string]struct{ text, line, part string }{
		"noip":    {head + "  ports: [{name: http, port: 80}]\n", "line=1", "set it, or give -service-cidr"},
		"field":   {head + "  clusterIP: 10.96.0.11\n  port: [{name: http, port: 80}]\n", "line=6", `unknown field \"spec.port\": did you mean ports?`},
		"kind":    {strings.Replace(head, "Service", "Servce", 1), "line=1", "unknown kind Servce: did you mean Service?"},
		"label":   {strings.Replace(slice, "LABELS", "{app: web}", 1), "line=5", "without the label kubernetes.io/service-name"},
		"portage": {strings.Replace(slice, "LABELS", "{kubernetes.io/service-name: web}", 1), "line=1", `no port \"wbe\"/TCP`},
	} {
		path := filepath.Join(dir, name+".yaml")
		write(t, path, strings.Replace(c.text, "NAME", name, 1))
		lines = append(lines, []string{"level=ERROR", "file=" + path, c.line, c.part})
	}
	p := n.wantRun(t, flags(dir, "-once"), 1, lines[0]...)
	for _, parts := range lines {
		if got := p.Count(parts...); got != 1 {
			t.Errorf("log lines with %q: got %d, want one", parts, got)
		}
		if got := p.Count(parts[1]); got != 1 {
			t.Errorf("log lines with %q: got %d, want one", parts[1], got)
		}
	}
	n.wantAnswers(t, virtualIP, endpoint1, endpoint2)
	n.wantAnswers(t, nodePort, endpoint1, endpoint2)
}

// TestServiceWithoutClusterIP checks that such a Service answers at an address of -service-cidr,
// the same one after a new start.
func TestServiceWithoutClusterIP(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "web.yaml")
	write(t, path, replace(t, demo(t), "  clusterIP: 10.96.0.10\n", ""))
	all := flags(path, "-service-cidr", "10.96.0.8/30", "-allocations", filepath.Join(dir, "state", "allocations"))
	p := n.start(t, all...)
	p.Await(`msg="ClusterIP allocated"`, "service=default/web", "10.96.0.")
	p.Await("msg=sync", "ports=1")
	address := "10.96.0.9:80"
	if p.Count(`msg="ClusterIP allocated"`, "10.96.0.10") == 1 {
		address = virtualIP
	}
	n.wantAnswers(t, address, endpoint1, endpoint2)
	p.Terminate(stopped)
	p = n.start(t, all...)
	p.Await(`msg="ClusterIP kept"`, strings.TrimSuffix(address, ":80"))
	p.Await("msg=sync", "ports=1")
	n.wantAnswers(t, address, endpoint1, endpoint2)
	p.Terminate(stopped)
}

func TestOnceWithoutPathHasOneLine(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.wantRun(t, flags(filepath.Join(t.TempDir(), "none"), "-once"), 1, "no such file")
}

// TestDemo runs the demo with and without privileges. It leaves no file behind.
func TestDemo(t *testing.T) {
	n := newNetwork(t)
	credentials := []*syscall.Credential{nil}
	if netnstest.IsRoot(t) {
		credentials = append(credentials, &syscall.Credential{Uid: netnstest.Nobody, Gid: netnstest.Nobody})
	}
	for _, c := range credentials {
		dir := t.TempDir()
		for _, d := range []string{dir, filepath.Dir(dir)} {
			testenv.NoError(t, os.Chmod(d, 0o777))
		}
		t.Setenv("TMPDIR", dir)
		cmd := agenttest.Command(t, "-demo", "-once")
		cmd.Path = "/proc/self/exe" // The folder of the file may be closed to others.
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c}
		demonstrates(t, n, cmd)
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("files after the demo: got %v, error %v, want none", left, err)
		}
	}
}

func demonstrates(t *testing.T, n network, cmd *exec.Cmd) {
	t.Helper()
	p := agenttest.Start(t, n.NS, patience, cmd)
	if status := p.Wait(); status != 0 {
		t.Errorf("status: got %d, want 0", status)
	}
	if got := p.Count("the Service has answered", endpoint1+"=", endpoint2+"="); got != 1 {
		t.Errorf("lines with answers of both endpoints: got %d, want one", got)
	}
}

// TestLimits checks that the log and a metric report session affinity, which iptables keeps
// only for a limited number of clients, while a Service has it.
func TestLimits(t *testing.T) {
	t.Parallel()
	netnstest.Program(t, "iptables-restore")
	n := newNetwork(t)
	path := filepath.Join(t.TempDir(), "web.yaml")
	manifest := demo(t)
	write(t, path, replace(t, manifest, "  clusterIP: 10.96.0.10", "  clusterIP: 10.96.0.10\n  sessionAffinity: ClientIP"))
	p := n.start(t, append(flags(path, "-backend", "iptables"), "-metrics-bind-address", "127.0.0.1:9102")...)
	p.Await(`level=ERROR msg="served with limits"`, "object=default/web", "field=spec.sessionAffinity", "ip_list_tot")
	const page = "http://127.0.0.1:9102/metrics"
	p.AwaitPage(page, "vipkit_service_port_limits 1")
	write(t, path, manifest)
	p.Await(`level=INFO msg="served with limits resolved"`, "object=default/web")
	p.AwaitPage(page, "vipkit_service_port_limits 0")
	p.Terminate(stopped)
}
