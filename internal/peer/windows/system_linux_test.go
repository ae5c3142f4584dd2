package windows_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/internal/testing/simhns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const (
	repository = "../../.."
	wine       = "/usr/lib/wine/wine64"
	compiler   = "x86_64-w64-mingw32-gcc"
)

// system is an installation of Windows.
type system struct {
	t      *testing.T
	within func(func() error) error // starts its processes
	env    []string                 // of its programs
	folder string                   // drive C
}

// needWine skips a test where Windows cannot be installed.
func needWine(t *testing.T) {
	t.Helper()
	for _, program := range []string{wine, compiler} {
		if _, err := exec.LookPath(program); err != nil {
			testenv.CannotRun(t, program+" is not installed")
		}
	}
}

// startSystem installs a Windows, whose processes within starts. It is removed when the test ends.
func startSystem(t *testing.T, within func(func() error) error) *system {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	// It also ends with this process, in whatever way that ends.
	run := exec.CommandContext(ctx, filepath.Join(repository, ".ci/wine/run"), "sh", "-c",
		`env | grep ^WINE; echo; exec tail --pid="$0" -f /dev/null`, strconv.Itoa(os.Getpid()))
	run.Cancel = func() error { return run.Process.Signal(syscall.SIGTERM) }
	run.WaitDelay = time.Minute
	run.Stderr = os.Stderr
	out, err := run.StdoutPipe()
	testenv.NoError(t, err)
	testenv.NoError(t, within(run.Start))
	t.Cleanup(func() {
		cancel()
		_ = run.Wait() // SIGTERM has ended it.
	})
	s := &system{t: t, within: within, env: os.Environ()}
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "" {
		if prefix, is := strings.CutPrefix(lines.Text(), "WINEPREFIX="); is {
			s.folder = filepath.Join(prefix, "drive_c")
		}
		s.env = append(s.env, lines.Text())
	}
	if s.folder == "" {
		t.Fatalf("Windows was not installed: %v", lines.Err())
	}
	return s
}

// serveHNS has a simulated HNS answer the library that stands in for computenetwork.dll.
func (s *system) serveHNS(sim *hcntest.Sim) {
	t := s.t
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.NoError(t, err)
	service := simhns.New(sim)
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := service.Serve(ctx, l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		ended.Wait()
		service.Close()
	})
	s.env = append(s.env, "VIPKIT_HNS="+portOf(l))
}

func portOf(l net.Listener) string {
	return strconv.Itoa(int(netip.MustParseAddrPort(l.Addr().String()).Port()))
}

// program is a process of Windows.
type program struct {
	t   *testing.T
	cmd *exec.Cmd
	log string
}

// start runs a program until it ends, is killed, or the test ends. If the test fails, its log has
// that of the program.
func (s *system) start(path string, args ...string) *program {
	s.t.Helper()
	log, err := os.CreateTemp(s.t.TempDir(), "log")
	testenv.NoError(s.t, err)
	p := &program{t: s.t, cmd: exec.CommandContext(s.t.Context(), wine, append([]string{path}, args...)...), log: log.Name()}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = s.env, log, log
	err = s.within(p.cmd.Start)
	testenv.NoError(s.t, errors.Join(err, log.Close()))
	s.t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			p.kill()
		}
		if text, err := os.ReadFile(p.log); s.t.Failed() {
			s.t.Logf("log of process %d (%v):\n%s", p.cmd.Process.Pid, err, text)
		}
	})
	return p
}

// kill ends the program at once.
func (p *program) kill() {
	p.t.Helper()
	_ = p.cmd.Process.Kill() // It fails if the program has ended.
	if err := p.cmd.Wait(); err == nil || err.Error() != "signal: killed" {
		p.t.Errorf("killing a program: got result %v, want signal: killed", err)
	}
}

// buildExample builds an example for Windows, like a user.
func buildExample(t *testing.T, name string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name+".exe")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", filepath.Join(repository, "examples", name), "-o", path, ".")
	build.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", name, err, out)
	}
	return path
}
