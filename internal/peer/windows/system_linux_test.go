package windows_test

import (
	"bufio"
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/peer/controlplane"
	"github.com/vipkit/vipkit/internal/testing/servertest"
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
	ns     *netns.NS // of its processes
	env    []string  // of its programs
	folder string    // drive C
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

// startSystem installs a Windows in a network namespace. It is removed when the test ends.
func startSystem(t *testing.T, ns *netns.NS) *system {
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
	testenv.NoError(t, ns.Do(run.Start))
	t.Cleanup(func() {
		cancel()
		_ = run.Wait() // SIGTERM has ended it.
	})
	s := &system{t: t, ns: ns, env: os.Environ()}
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
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.NoError(s.t, err)
	simhns.Start(s.t, sim, l)
	s.env = append(s.env, "VIPKIT_HNS="+portOf(l))
}

func portOf(l net.Listener) string {
	return strconv.Itoa(int(netip.MustParseAddrPort(l.Addr().String()).Port()))
}

// start runs a program until it ends, is killed, or the test ends. If the test fails, its log has
// the log of the program.
func (s *system) start(path string, args ...string) *servertest.Process {
	s.t.Helper()
	command := exec.Command(wine, append([]string{path}, args...)...)
	command.Env = s.env
	log := filepath.Join(s.t.TempDir(), "log")
	p := servertest.Start(s.t, log, command, s.ns.Do)
	s.t.Cleanup(func() {
		if text, err := os.ReadFile(log); s.t.Failed() {
			s.t.Logf("log of process %d (%v):\n%s", p.ID(), err, text)
		}
	})
	return p
}

// buildAgent builds the agent for Windows.
func buildAgent(t *testing.T) (path string) {
	t.Helper()
	return controlplane.Build(t, filepath.Join(repository, "examples/kubeproxy"), "github.com/vipkit/vipkit/examples/kubeproxy",
		"GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
}
