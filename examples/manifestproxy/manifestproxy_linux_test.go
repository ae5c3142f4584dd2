package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/testing/agenttest"
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
	for _, capture := range []string{"tproxy", "redirect"} {
		t.Run(capture, func(t *testing.T) {
			t.Parallel()
			servesWhileRunning(t, "-backend", "userspace", "-capture", capture)
		})
	}
}

func servesWhileRunning(t *testing.T, choice ...string) {
	t.Helper()
	n := newNetwork(t)
	for range 2 {
		p := n.start(t, flags("demo", choice...)...)
		p.Await("msg=sync", "full=true", "ports=1")
		n.wantAnswers(t, virtualIP, endpoint1, endpoint2)
		n.wantAnswers(t, nodePort, endpoint1, endpoint2)
		p.Terminate(stopped)
		n.wantNoConnection(t)
	}
	n.wantRun(t, append([]string{"-cleanup"}, choice...), 0, "all rules are removed")
}

func TestFollow(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	kernel := openKernel(t, n.NS)
	kernel.addTable("foreign")
	before := kernel.dump("foreign")
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

	write(t, path, replace(t, manifest, "  clusterIP: 10.96.0.10", "  clusterIP: 10.96.0.10\n  externalIPs: [nonsense]"))
	p.Await(`level=ERROR msg="object problem"`, "kind=Service", "object=default/web", "field=spec.externalIPs[0]")
	write(t, path, manifest)
	p.Await(`level=INFO msg="object problem resolved"`, "object=default/web")

	p.Terminate(stopped)
	n.wantAnswers(t, virtualIP, endpoint1, endpoint2)
	for _, what := range []string{"manifest problem", "object problem"} {
		if got := p.Count("level=ERROR", `"`+what+`"`); got != 1 {
			t.Errorf("lines with %s: got %d, want one", what, got)
		}
	}

	n.wantRun(t, []string{"-cleanup"}, 0, "all rules are removed")
	n.wantNoConnection(t)
	if diff := cmp.Diff([]string{"foreign"}, kernel.tables()); diff != "" {
		t.Errorf("tables after -cleanup (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, kernel.dump("foreign")); diff != "" {
		t.Errorf("foreign table after -cleanup (-want +got):\n%s", diff)
	}
	n.wantRun(t, []string{"-cleanup"}, 0, "all rules are removed")
}

// TestOlderServiceKeepsItsAddress adds a file whose name is first and whose Service claims the
// address of another Service. The other one keeps it, also after a restart.
func TestOlderServiceKeepsItsAddress(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "web.yaml")
	write(t, path, demo(t))
	then := time.Now().Add(-time.Hour)
	testenv.NoError(t, os.Chtimes(path, then, then))
	p := n.start(t, flags(dir)...)
	p.Await("msg=sync", "full=true", "ports=1")
	write(t, filepath.Join(dir, "a.yaml"), "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  clusterIP: 10.96.0.10\n  ports:\n  - {name: http, port: 80}\n")
	for range 2 {
		p.Await(`level=ERROR msg="object problem"`, "object=default/a", "field=spec.clusterIPs", "already belongs to Service default/web")
		p.Await("msg=sync", "ports=2")
		n.wantAnswers(t, virtualIP, endpoint1, endpoint2)
		p.Terminate(stopped)
		n.wantAnswers(t, virtualIP, endpoint1, endpoint2)
		p = n.start(t, flags(dir)...)
	}
	p.Await("msg=sync", "ports=2")
	testenv.NoError(t, os.Remove(path))
	p.Await(`level=INFO msg="object problem resolved"`, "object=default/a")
	p.Terminate(stopped)
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
	p := n.wantRun(t, flags(filepath.Join(t.TempDir(), "none"), "-once"), 1, "msg=failed", "no such file")
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
	for _, flags := range [][]string{flags("demo", "-once"), flags("demo"), {"-cleanup"}} {
		cmd := agenttest.Command(t, flags...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
		p := agenttest.Start(t, n.NS, patience, cmd)
		if status := p.Wait(); status != 1 {
			t.Errorf("%q: got status %d, want 1", flags, status)
		}
		if p.Count("backend unsupported on this node", "CAP_NET_ADMIN; run it as root") != 1 {
			t.Errorf("%q: log: got no line that names the requirements, want one", flags)
		}
	}
}
