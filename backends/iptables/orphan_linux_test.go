package iptables

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// gate makes iptables-restore of a stage wait.
type gate struct {
	folder string
	// started has a line for each program that was started.
	started string
}

// newGate installs a stub of iptables-restore that runs a script while the gate is shut. The
// script writes to the fifo begins, and may wait for the fifo opens.
func newGate(t *testing.T, s *stage, script string) *gate {
	t.Helper()
	g := &gate{folder: t.TempDir()}
	for _, name := range []string{"begins", "opens"} {
		testenv.NoError(t, unix.Mkfifo(filepath.Join(g.folder, name), 0o600))
	}
	g.started = stubRestore(t, s, "cd "+g.folder+"; if [ -e shut ]; then "+script+"; fi")
	return g
}

func (g *gate) shut(t *testing.T) {
	t.Helper()
	testenv.NoError(t, os.WriteFile(filepath.Join(g.folder, "shut"), nil, 0o600))
	t.Cleanup(func() { g.open(t) })
}

// awaitBegin waits until a program has reached the gate.
func (g *gate) awaitBegin() error {
	// With O_RDWR the file is its own writer, so opening it does not wait for one.
	file, err := os.OpenFile(filepath.Join(g.folder, "begins"), os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // nothing was written
	if err := file.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	_, err = file.Read(make([]byte, 1))
	return err
}

// awaitEnd waits until the program whose PID is in the file pid has ended.
func (g *gate) awaitEnd(t *testing.T) {
	t.Helper()
	pid, err := os.ReadFile(filepath.Join(g.folder, "pid"))
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

// open opens the gate for waiting programs, and for all later ones.
func (g *gate) open(t *testing.T) {
	t.Helper()
	if err := os.Remove(filepath.Join(g.folder, "shut")); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	// The fifo stays open for programs that read it later: each reads a line.
	file, err := os.OpenFile(filepath.Join(g.folder, "opens"), os.O_RDWR|unix.O_NONBLOCK, 0)
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() }) // no program waits any more
	if _, err := file.WriteString(strings.Repeat("\n", 8)); err != nil {
		t.Fatal(err)
	}
}

// agentFlavour is set for a copy of the test binary that acts as an agent.
const agentFlavour = "IPTABLES_TEST_AGENT"

func orphanSnapshots() (former, next proxy.Snapshot) {
	all := newPorts(v1.IPv4Protocol, 4, 2)
	return proxy.NewSnapshot(stagetest.Node(), all[:3]...), proxy.NewSnapshot(stagetest.Node(), all[3])
}

// startAgent starts a process with its own backend, and waits until it has started a program.
func startAgent(t *testing.T, s *stage, g *gate) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^"+strings.Split(t.Name(), "/")[0]+"$")
	cmd.Env = append(os.Environ(), agentFlavour+"="+string(s.Options.Flavour))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	testenv.NoError(t, s.NS.Do(cmd.Start))
	if err := g.awaitBegin(); err != nil {
		t.Fatalf("waiting for the agent's program: %v", err)
	}
	return cmd
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	testenv.NoError(t, cmd.Process.Kill())
	if err := cmd.Wait(); !strings.Contains(err.Error(), "killed") {
		t.Fatalf("end of the agent: got %v, want it to be killed", err)
	}
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
	former, _ := orphanSnapshots()
	t.Error("the agent was not killed: ", b.Apply(t.Context(), proxy.Snapshot{}, former))
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
		g := newGate(t, s, "echo $$ >pid; echo >begins; read x <opens")
		g.shut(t)
		kill(t, startAgent(t, s, g))
		g.awaitEnd(t)
		if left := s.dump(t); left != "" {
			t.Errorf("rules after the agent was killed: got\n%s\nwant none", left)
		}
	})
}

// If a program leaves a child that keeps its output open, the backend does not wait without
// limit, and reports that the dataplane is lost.
func TestLingeringChild(t *testing.T) {
	s := newStage(t, Options{Flavour: NFT, LockWait: time.Second})
	g := newGate(t, s, "(echo >begins; read x <opens) & exit 0")
	former, next := orphanSnapshots()
	s.Apply(t, former)
	g.shut(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var waiting sync.WaitGroup
	defer waiting.Wait()
	waiting.Go(func() {
		if err := g.awaitBegin(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Backend.Apply(ctx, former, next); !errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("Apply: got error %v, want %v", err, proxy.ErrDataplaneLost)
	}
}

// outputWait is how long the engine waits for the output of a program that was killed.
const outputWait = 2 * time.Second

// If the context of an Apply ends, its program and the program's children are killed.
func TestContextEndsDuringChildren(t *testing.T) {
	s := newStage(t, Options{Flavour: NFT, LockWait: time.Second})
	g := newGate(t, s, "(read x <opens) & echo >begins; read x <opens")
	former, next := orphanSnapshots()
	s.Apply(t, former)
	g.shut(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var waiting sync.WaitGroup
	var start time.Time
	waiting.Go(func() {
		if err := g.awaitBegin(); err != nil {
			t.Error(err)
		}
		start = time.Now()
		cancel()
	})
	err := s.Backend.Apply(ctx, former, next)
	waiting.Wait()
	if !errors.Is(err, proxy.ErrDataplaneLost) || !errors.Is(err, context.Canceled) {
		t.Errorf("Apply: got error %v, want %v and %v", err, proxy.ErrDataplaneLost, context.Canceled)
	}
	if took := time.Since(start); took > outputWait {
		t.Errorf("duration: got %v, want less than %v", took, outputWait)
	}
	testenv.NoError(t, os.Remove(filepath.Join(g.folder, "shut")))
	s.Applied = proxy.Snapshot{}
	s.Apply(t, next)
}
