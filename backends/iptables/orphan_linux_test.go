package iptables

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// agentFlavour is set for a copy of the test binary that acts as an agent.
const agentFlavour = "IPTABLES_TEST_AGENT"

// startAgent starts a process with its own backend, and waits until its program has written a line to a fifo.
func startAgent(t *testing.T, s *stage, begins string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^"+strings.Split(t.Name(), "/")[0]+"$")
	cmd.Env = append(os.Environ(), agentFlavour+"="+string(s.Options.Flavour))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	testenv.NoError(t, s.NS.Do(cmd.Start))
	// With O_RDWR the file is its own writer, so opening it does not wait for one.
	file, err := os.OpenFile(begins, os.O_RDWR|unix.O_NONBLOCK, 0)
	testenv.NoError(t, err)
	defer file.Close() //nolint:errcheck // nothing was written
	testenv.NoError(t, file.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = file.Read(make([]byte, 1))
	testenv.NoError(t, err)
	return cmd
}

// awaitEnd waits until the program whose PID is in a file has ended.
func awaitEnd(t *testing.T, file string) {
	t.Helper()
	pid, err := os.ReadFile(file)
	testenv.NoError(t, err)
	for range 6000 {
		status, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/status")
		if err != nil || strings.Contains(string(status), "zombie") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the program of a killed agent still runs after a minute")
}

// beAgent acts as an agent if this process is one.
func beAgent(t *testing.T) bool {
	t.Helper()
	flavour, isAgent := os.LookupEnv(agentFlavour)
	if !isAgent {
		return false
	}
	b, err := New(Options{Flavour: Flavour(flavour)})
	testenv.NoError(t, err)
	t.Error("the agent was not killed: ", b.Apply(t.Context(), proxy.Snapshot{}, sampleSnapshot()))
	return true
}

// The program that an agent has started is killed with the agent.
func TestKilledAgent(t *testing.T) {
	if beAgent(t) {
		return
	}
	runtime.LockOSThread() // the agent ends with the thread that started it
	defer runtime.UnlockOSThread()
	eachFlavourInTurn(t, func(t *testing.T, s *stage) {
		folder := t.TempDir()
		testenv.NoError(t, unix.Mkfifo(folder+"/begins", 0o600))
		testenv.NoError(t, unix.Mkfifo(folder+"/never", 0o600))
		stubRestore(t, s, "cd "+folder+"; if [ ! -e open ]; then echo $$ >pid; echo >begins; read x <never; fi")
		cmd := startAgent(t, s, folder+"/begins")
		testenv.NoError(t, cmd.Process.Kill())
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("end of the agent: got %v, want it to be killed", err)
		}
		awaitEnd(t, folder+"/pid")
		testenv.NoError(t, os.WriteFile(folder+"/open", nil, 0o600))
		if left := s.dump(t); left != "" {
			t.Errorf("rules after the agent was killed: got\n%s\nwant none", left)
		}
	})
}
