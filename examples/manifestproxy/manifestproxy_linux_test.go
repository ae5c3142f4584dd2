package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// demo returns the manifest of the demo.
func demo(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("demo/web.yaml")
	testenv.NoError(t, err)
	return string(text)
}

// replace returns a text with one part replaced.
func replace(t *testing.T, text, part, by string) string {
	t.Helper()
	if n := strings.Count(text, part); n != 1 {
		t.Fatalf("%q in the manifest: got %d times, want once", part, n)
	}
	return strings.Replace(text, part, by, 1)
}

// write replaces a file in one step, as editors do.
func write(t *testing.T, path, text string) {
	t.Helper()
	temporary := path + ".new"
	testenv.NoError(t, os.WriteFile(temporary, []byte(text), 0o600))
	testenv.NoError(t, os.Rename(temporary, path))
}

// flags returns the flags to serve the manifests at a path, and further flags.
func flags(path string, more ...string) []string {
	return append([]string{"-manifests", path, "-node", "node-1", "-node-ip", nodeIP, "-cluster-cidr", "10.244.0.0/16"}, more...)
}

func TestOnce(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.wantNoConnection(t)
	first := n.wantRun(t, flags("demo", "-once"), 0, "msg=sync", "full=true", "changed=1", "ports=1")
	if first.Count("operations=0 ") != 0 {
		t.Error("first run: got 0 operations, want some")
	}
	n.wantAnswers(t, virtualIP, endpoint1, endpoint2)
	n.wantAnswers(t, nodePort, endpoint1, endpoint2)
	n.wantRun(t, flags("demo", "-once"), 0, "msg=sync", "full=true", "operations=0 ", "ports=1")
	n.wantAnswers(t, virtualIP, endpoint1, endpoint2)
}

// TestUserspace checks that the program serves while it runs, and that afterwards no
// connection succeeds, also not to another host with the address.
func TestUserspace(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	for range 2 {
		p := n.start(t, flags("demo", "-backend", "userspace")...)
		p.Await("msg=sync", "full=true", "ports=1")
		n.wantAnswers(t, virtualIP, endpoint1, endpoint2)
		p.Terminate(stopped)
		n.wantNoConnection(t)
	}
	n.wantRun(t, []string{"-cleanup", "-backend", "userspace"}, 0, "all rules are removed")
}

func TestFollow(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	path := filepath.Join(t.TempDir(), "web.yaml")
	manifest := demo(t)
	write(t, path, manifest)

	p := n.start(t, flags(filepath.Dir(path))...)
	p.Await("msg=sync", "full=true", "ports=1")
	n.wantAnswers(t, virtualIP, endpoint1, endpoint2)

	less := replace(t, manifest, "ready: true", "ready: false")
	write(t, path, less)
	p.Await("msg=sync", "full=false", "changed=1")
	n.wantAnswers(t, virtualIP, endpoint1)

	// The parser reports a missing bracket where the list begins.
	broken := replace(t, less, "  clusterIP: 10.96.0.10", "  clusterIP: [10.96.0.10")
	write(t, path, broken)
	p.Await(`level=ERROR msg="manifest problem"`, "file="+path, "line=10")
	n.wantAnswers(t, virtualIP, endpoint1)
	syncs := p.Count("msg=sync")
	write(t, path, manifest)
	p.Await(`level=INFO msg="manifest problem resolved"`, "file="+path, "line=10")
	if p.Count("msg=sync") == syncs { // The order of the two lines is random.
		p.Await("msg=sync", "full=false", "changed=1")
	}
	n.wantAnswers(t, virtualIP, endpoint1, endpoint2)

	p.Terminate(stopped)
	n.wantAnswers(t, virtualIP, endpoint1, endpoint2)

	n.wantRun(t, []string{"-cleanup"}, 0, "all rules are removed")
	n.wantNoConnection(t)
	n.wantRun(t, []string{"-cleanup"}, 0, "all rules are removed")
}

// TestStartBeforeManifests starts the program before the file exists: it logs what it waits for.
func TestStartBeforeManifests(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	path := filepath.Join(t.TempDir(), "web.yaml")
	p := n.start(t, flags(path)...)
	p.Await(`msg="manifest problem"`, path, "no such file")
	p.Await("level=INFO msg=waiting", `for="first objects"`, "Services 0", "waited=5")
	write(t, path, demo(t))
	p.Await(`msg="manifest problem resolved"`, path)
	if p.Count("msg=sync") == 0 { // The order of the two lines is random.
		p.Await("msg=sync", "full=true", "ports=1")
	}
	n.wantAnswers(t, virtualIP, endpoint1, endpoint2)
	p.Terminate(stopped)
}

func TestOnceLogsProblems(t *testing.T) {
	t.Parallel()
	manifest := demo(t)
	bad := manifest + "---\nkind: Service\napiVersion: v1\nmetadata: {}\n"
	for _, c := range []struct {
		name, text string
		parts      []string
	}{
		{"bad document", bad, []string{`msg="manifest problem"`, "Service without metadata.name", "line=36"}},
		{
			"object problem", replace(t, manifest, "clusterIP: 10.96.0.10", "clusterIP: 10.96.0.10\n  externalIPs: [nonsense]"),
			[]string{`msg="object problem"`, "object=default/web", "field=spec.externalIPs[0]"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNetwork(t)
			path := filepath.Join(t.TempDir(), "web.yaml")
			write(t, path, c.text)
			p := n.wantRun(t, flags(path, "-once"), 1, c.parts...)
			if p.Count("msg=failed", "not everything could be programmed") != 1 {
				t.Error("log: got no last line about what could not be programmed, want one")
			}
			n.wantAnswers(t, virtualIP, endpoint1, endpoint2)
		})
	}
}

func TestOnceWithoutManifestsLeavesTheRules(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.wantRun(t, flags("demo", "-once"), 0, "msg=sync")
	p := n.wantRun(t, flags(filepath.Join(t.TempDir(), "none"), "-once"), 1, "no such file")
	if p.Count("msg=sync") != 0 {
		t.Error("log: got a sync without manifests, want none")
	}
	n.wantAnswers(t, virtualIP, endpoint1, endpoint2)
}

func TestInterrupt(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	p := n.start(t, flags("demo")...)
	p.Await("msg=sync")
	p.Signal(os.Interrupt)
	if status := p.Wait(); status != 0 {
		t.Errorf("status after SIGINT: got %d, want 0", status)
	}
}

// TestUnprivileged runs the program in a user namespace of its own, in which it has no
// privileges for the network namespace.
func TestUnprivileged(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	for _, flags := range [][]string{flags("demo"), {"-cleanup"}} {
		cmd := agenttest.Command(t, flags...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
		p := agenttest.Start(t, n.NS, patience, cmd)
		if status := p.Wait(); status != 1 || p.Count("msg=failed", "CAP_NET_ADMIN") != 1 {
			t.Errorf("%q: got status %d, want 1, and a line that names the missing capability", flags, status)
		}
	}
}

// TestServers checks the pages, and that a UDP client that continues to send reaches another endpoint when
// its own is removed.
func TestServers(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	path := filepath.Join(t.TempDir(), "dns.yaml")
	manifest := `{apiVersion: v1, kind: Service, metadata: {name: dns}, spec: {clusterIP: 10.96.0.53, ports: [{port: 53, protocol: UDP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: dns-1, labels: {kubernetes.io/service-name: dns}},
 addressType: IPv4, ports: [{name: "", port: 8053, protocol: UDP}], endpoints: [{addresses: [` + agenttest.Pod1IP + `], nodeName: node-1}]}
`
	write(t, path, manifest)
	const healthz, metrics = "127.0.0.1:10256", "127.0.0.1:10249"
	p := n.start(t, flags(path, "-healthz-bind-address", healthz, "-metrics-bind-address", metrics)...)
	p.Await("msg=sync", "full=true", "ports=1")
	socket, err := lab.Dial(t.Context(), n.Client, "udp", "10.96.0.53:53")
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, socket)
	awaitReply(t, socket, agenttest.Pod1IP+":8053")
	write(t, path, replace(t, manifest, agenttest.Pod1IP, agenttest.Pod2IP))
	awaitReply(t, socket, agenttest.Pod2IP+":8053")
	p.AwaitPage("http://"+healthz+"/livez", "200 OK", `"healthy":true,"status":{"IPv4":`)
	p.AwaitPage("http://"+healthz+"/healthz", "200 OK", `"nodeEligible":true`)
	p.AwaitPage("http://"+metrics+"/debug/services", "200 OK", "Backend nftables")
	p.AwaitPage("http://"+metrics+"/metrics", "200 OK", `vipkit_syncs_total{result="done"} `, `kubeproxy_proxy_healthz_total{code="200"} 1`)
	p.Terminate(stopped)
}

// awaitReply sends datagrams by a socket until the wanted server answers.
func awaitReply(t *testing.T, c *lab.Conn, want string) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		got, err := c.Ask(ctx) // The kernel may report the ICMP error of an earlier datagram.
		cancel()
		if err == nil && got.Own.String() == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("server that replies: got %+v, error %v, want %q", got, err, want)
		}
	}
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
		cmd := agenttest.Command(t, "-demo")
		cmd.Path = "/proc/self/exe" // The folder of the file may be closed to others.
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c}
		p := agenttest.Start(t, n.NS, patience, cmd)
		p.Await("the Service has answered", endpoint1+":", endpoint2+":")
		p.Terminate("msg=")
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("files after the demo: got %v, error %v, want none", left, err)
		}
	}
}
