package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/simhns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestMain(m *testing.M) { os.Exit(agenttest.Main(runAgent, m.Run)) }

func runAgent(args []string, stderr io.Writer) int { return Main(args, os.Stdout, stderr) }

// serveHNS serves the node's HNS to the library that stands in for computenetwork.dll.
func (n *windowsNode) serveHNS() {
	n.t.Helper()
	if os.Getenv("VIPKIT_HNS") == "" {
		testenv.CannotRun(n.t, "computenetwork.dll is the one of Windows; run make windows")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.NoError(n.t, err)
	service := simhns.New(n.hns)
	ctx, cancel := context.WithCancel(n.t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := service.Serve(ctx, l); err != nil {
			n.t.Error(err)
		}
	})
	n.t.Cleanup(func() {
		cancel()
		ended.Wait()
		service.Close()
	})
	n.t.Setenv("VIPKIT_HNS", strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
}

// program is the agent as a process.
type program struct {
	*exec.Cmd
	log strings.Builder
}

func (n *windowsNode) program(flags ...string) *program {
	n.t.Helper()
	path, err := os.Executable()
	testenv.NoError(n.t, err)
	p := &program{Cmd: exec.CommandContext(n.t.Context(), path, append(n.flags, flags...)...)}
	p.Env, p.Stderr = agenttest.Environ(), &p.log
	if _, err := p.StdinPipe(); err != nil {
		n.t.Fatal(err)
	}
	testenv.NoError(n.t, p.Start())
	n.t.Cleanup(func() {
		if n.t.Failed() {
			n.t.Logf("log of a program:\n%s", &p.log)
		}
	})
	return p
}

// kill ends the program at once.
func (p *program) kill(t *testing.T) {
	t.Helper()
	testenv.NoError(t, p.Process.Kill())
	if _, is := errors.AsType[*exec.ExitError](p.Wait()); !is {
		t.Error("the program had ended before it was killed")
	}
}

// TestProgramIsKilled checks that no policy is lost or doubled when the program is killed 20 times,
// while it programs a change or has done so, and that -cleanup of another process removes all.
func TestProgramIsKilled(t *testing.T) {
	n := newWindowsNode(t, hcn.Network{Type: "L2Bridge"}, "")
	n.serveHNS()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	testenv.NoError(t, os.WriteFile(kubeconfig, []byte(kubeconfigOf(n.server)), 0o600))
	n.flags = append(n.flags, "-kubeconfig", kubeconfig)
	p := n.program()
	n.awaitDump(policies(8080)...)
	for i := range 20 {
		n.api.put("endpointslices", slice("web", int32(8081+i)))
		if i%2 == 0 {
			n.awaitDump(policies(8081 + i)...)
		}
		p.kill(t)
		p = n.program()
		n.awaitDump(policies(8081 + i)...)
	}
	n.api.remove("services", "web")
	n.awaitDump()
	n.api.put("services", service("web", "10.96.0.10"))
	n.awaitDump(policies(8100)...)
	awaitPage(t, "http://"+n.HealthzBindAddress+"/healthz", "200 OK")
	p.kill(t)
	n.awaitDump(policies(8100)...)
	if err := n.program("-cleanup").Wait(); err != nil {
		t.Errorf("-cleanup: %v", err)
	}
	n.awaitDump()
	if violations := n.hns.Violations(); len(violations) > 0 {
		t.Errorf("violations: %q", violations)
	}
}

// TestNoServiceManager checks that a program that no service manager has started says so.
func TestNoServiceManager(t *testing.T) {
	n := newWindowsNode(t, hcn.Network{Type: "L2Bridge"}, "")
	p := n.program("-windows-service")
	if err := p.Wait(); err == nil || !strings.Contains(p.log.String(), "-windows-service: the service manager has not started") {
		t.Errorf("got error %v, log\n%s\nwant an error about the service manager", err, &p.log)
	}
}
