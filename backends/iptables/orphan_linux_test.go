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

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/proxy"
)

// gate holds up iptables-restore of a stage.
type gate struct {
	folder string
	// started has a line for each program that was started.
	started string
}

// newGate puts a stand-in in the place of iptables-restore that, once the gate is
// shut, does what a script says, which writes to $begins, and may wait for $opens.
func newGate(t *testing.T, s *stage, script string) *gate {
	t.Helper()
	g := &gate{folder: t.TempDir()}
	for _, name := range []string{"begins", "opens"} {
		if err := unix.Mkfifo(filepath.Join(g.folder, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g.started = standIn(t, s, "cd "+g.folder+"; if [ -e shut ]; then "+script+"; fi")
	return g
}

func (g *gate) shut(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(g.folder, "shut"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.open(t) })
}

// awaitBegin waits until a program stands before the gate.
func (g *gate) awaitBegin() error {
	// Opened so, there is always a writer, and so no need to wait for one.
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

// open lets those pass who wait, and all that come.
func (g *gate) open(t *testing.T) {
	t.Helper()
	if err := os.Remove(filepath.Join(g.folder, "shut")); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	// It stays open for those who are on their way to it: each takes a line.
	file, err := os.OpenFile(filepath.Join(g.folder, "opens"), os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() }) // nobody waits any more
	if _, err := file.WriteString(strings.Repeat("\n", 8)); err != nil {
		t.Fatal(err)
	}
}

// agentFlavour marks a copy of the test binary that stands for an agent.
const agentFlavour = "IPTABLES_TEST_AGENT"

func orphanWorlds() (former, next proxy.Snapshot) {
	all := world(v1.IPv4Protocol, 4, 2)
	return proxy.NewSnapshot(stagetest.Node(), all[:3]...), proxy.NewSnapshot(stagetest.Node(), all[3])
}

// startAgent starts a process with a backend of its own, and waits until it has
// started a program.
func startAgent(t *testing.T, s *stage, g *gate) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^"+strings.Split(t.Name(), "/")[0]+"$")
	cmd.Env = append(os.Environ(), agentFlavour+"="+string(s.Options.Flavour))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := s.NS.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	if err := g.awaitBegin(); err != nil {
		t.Fatalf("the agent starts no program: %v", err)
	}
	return cmd
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); !strings.Contains(err.Error(), "killed") {
		t.Fatalf("the agent ended by itself: %v", err)
	}
}

// beAgent does what an agent does, if this process is one.
func beAgent(t *testing.T) bool {
	t.Helper()
	flavour, isAgent := os.LookupEnv(agentFlavour)
	if !isAgent {
		return false
	}
	b, err := New(Options{Flavour: Flavour(flavour)})
	if err != nil {
		t.Fatal(err)
	}
	former, _ := orphanWorlds()
	t.Error("an agent was not killed: ", b.Apply(t.Context(), proxy.Snapshot{}, former))
	return true
}

// What an agent has started ends with it.
func TestKilledAgent(t *testing.T) {
	if beAgent(t) {
		return
	}
	runtime.LockOSThread() // the agent ends with the thread that started it
	defer runtime.UnlockOSThread()
	eachFlavour(t, func(t *testing.T, s *stage) {
		g := newGate(t, s, "echo >begins; read x <opens")
		g.shut(t)
		kill(t, startAgent(t, s, g))
		// The gate is still shut: whoever wants the guard waits for who holds it.
		held, err := guardOf(t, s, time.Minute).take(t.Context())
		if err != nil {
			t.Fatalf("after the agent was killed, the program that it started lives on: %v", err)
		}
		if err := held.Close(); err != nil {
			t.Error(err)
		}
		if left := s.dump(t); left != "" {
			t.Errorf("a program of an agent that was killed has written:\n%s", left)
		}
	})
}

func guardOf(t *testing.T, s *stage, wait time.Duration) *guard {
	t.Helper()
	var g *guard
	err := s.NS.Do(func() error {
		o, err := s.Options.complete()
		if err != nil {
			return err
		}
		o.LockWait = wait
		at, err := here()
		if err != nil {
			return err
		}
		p, err := findPrograms(t.Context(), &o, v1.IPv4Protocol, at)
		g = p.process.guard
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// What a program of an agent has started may outlive it, say where iptables-restore
// is a script. The successor neither reads nor writes before that has ended.
func TestOrphan(t *testing.T) {
	if beAgent(t) {
		return
	}
	runtime.LockOSThread() // the agent ends with the thread that started it
	defer runtime.UnlockOSThread()
	eachFlavour(t, func(t *testing.T, s *stage) {
		s.Options.LockWait = time.Second
		g := newGate(t, s, `(echo >begins; read x <opens; exec $real "$@"); exit`)
		g.shut(t)
		kill(t, startAgent(t, s, g))
		startedSince(t, g.started)
		_, next := orphanWorlds()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		err := s.Backend.Apply(ctx, proxy.Snapshot{}, next)
		if !errors.Is(err, ErrLocked) || errors.As(err, new(proxy.PortErrors)) {
			t.Errorf("while a program of a former agent may still write: got error %v, want %v and nobody blamed", err, ErrLocked)
		}
		for _, name := range startedSince(t, g.started) {
			if strings.HasPrefix(name, "iptables") { // the other family has nothing to do with it
				t.Errorf("while a program of a former agent may still write, %s was started", name)
			}
		}
		g.open(t)
		held, err := guardOf(t, s, time.Minute).take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := held.Close(); err != nil {
			t.Error(err)
		}
		if s.dump(t) == "" {
			t.Error("the former agent's program wrote nothing, so the test shows nothing")
		}
		s.Apply(t, next)
		fresh := newStage(t, s.Options)
		fresh.Apply(t, next)
		if diff := cmp.Diff(fresh.dump(t), s.dump(t)); diff != "" {
			t.Errorf("the rules (-fresh +after an orphan):\n%s", diff)
		}
	})
}

// A program that leaves another one behind, which holds its output open, is not
// waited for without end, and not believed.
func TestLingeringProgram(t *testing.T) {
	s := newStage(t, Options{Flavour: NFT, LockWait: time.Second})
	g := newGate(t, s, "(echo >begins; read x <opens) & exit 0")
	former, next := orphanWorlds()
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
		t.Errorf("got error %v, want %v", err, proxy.ErrDataplaneLost)
	}
	if err := s.Backend.Apply(ctx, proxy.Snapshot{}, next); !errors.Is(err, ErrLocked) {
		t.Errorf("while what it left behind lives: got error %v, want %v", err, ErrLocked)
	}
}

// Who stops an Apply stops what its program has started too.
func TestStoppedWithChildren(t *testing.T) {
	s := newStage(t, Options{Flavour: NFT, LockWait: time.Second})
	g := newGate(t, s, "(read x <opens) & echo >begins; read x <opens")
	former, next := orphanWorlds()
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
		t.Errorf("got error %v, want %v and %v", err, proxy.ErrDataplaneLost, context.Canceled)
	}
	if took := time.Since(start); took > lingering {
		t.Errorf("that took %v, want less than %v", took, lingering)
	}
	if err := os.Remove(filepath.Join(g.folder, "shut")); err != nil {
		t.Fatal(err)
	}
	s.Applied = proxy.Snapshot{}
	s.Apply(t, next) // nobody holds the guard
}
