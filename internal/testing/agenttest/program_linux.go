package agenttest

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Program is a process that runs the agent in a network namespace. Only the goroutine
// of its test uses it.
type Program struct {
	t        testing.TB
	ns       *netns.NS
	patience time.Duration
	cmd      *exec.Cmd
	out      io.Closer // the log
	lines    chan string
	log      []string // the lines that were received from lines
}

// Command returns the command that runs the agent.
func Command(t testing.TB, flags ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	testenv.NoError(t, err)
	return exec.Command(exe, flags...)
}

// Start starts a command that is or runs [Command]. The process is killed when the test or its program
// ends at the latest, and patience bounds each wait for it. If the test fails, its log has the process's
// log.
func Start(t testing.TB, ns *netns.NS, patience time.Duration, cmd *exec.Cmd) *Program {
	t.Helper()
	p := &Program{t: t, ns: ns, patience: patience, cmd: cmd, lines: make(chan string, 10_000)}
	cmd.Env = Environ()
	out, err := cmd.StderrPipe()
	testenv.NoError(t, err)
	testenv.NoError(t, testenv.Start(cmd, ns.Do))
	p.out = out
	go p.read(out)
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			p.Kill()
		}
		if t.Failed() {
			t.Logf("%s logged\n%s", strings.Join(cmd.Args, " "), strings.Join(p.log, "\n"))
		}
	})
	return p
}

func (p *Program) read(out io.Reader) {
	defer close(p.lines)
	for s := bufio.NewScanner(out); s.Scan(); {
		p.lines <- s.Text()
	}
}

// Await waits for a line of the log that contains all parts, after the lines of earlier waits.
func (p *Program) Await(parts ...string) {
	p.t.Helper()
	p.AwaitEach(parts)
}

// AwaitEach waits for several lines, in any order, each of which contains all of its parts.
func (p *Program) AwaitEach(lines ...[]string) {
	p.t.Helper()
	for timeout := time.After(p.patience); len(lines) > 0; {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("the program ended without logging lines with %q", lines)
			}
			p.log = append(p.log, line)
			if i := slices.IndexFunc(lines, func(parts []string) bool { return hasAll(line, parts) }); i >= 0 {
				lines = slices.Delete(lines, i, i+1)
			}
		case <-timeout:
			p.t.Fatalf("no lines with %q are logged within %v", lines, p.patience)
		}
	}
}

// CloseLog closes the reading end of the log, so that the process cannot write to it.
func (p *Program) CloseLog() {
	p.t.Helper()
	testenv.NoError(p.t, p.out.Close())
}

// ID returns the process ID.
func (p *Program) ID() int { return p.cmd.Process.Pid }

// Count returns how many lines of the log, up to the last wait, contain all parts.
func (p *Program) Count(parts ...string) int {
	n := 0
	for _, line := range p.log {
		if hasAll(line, parts) {
			n++
		}
	}
	return n
}

// AwaitPage gets a page of the program from its own network namespace, until the page contains
// all parts.
func (p *Program) AwaitPage(url string, parts ...string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), p.patience)
	defer cancel()
	AwaitPage(ctx, p.t, p.ns.Dial, url, parts...)
}

// Signal sends a signal to the process, which must not have ended.
func (p *Program) Signal(signal os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		p.t.Fatalf("%v: %v", signal, err)
	}
}

// Wait waits until the process has ended, and returns its exit status, -1 if it was killed. It
// kills the process when patience is over.
func (p *Program) Wait() int {
	p.t.Helper()
	kill := time.AfterFunc(p.patience, func() { _ = p.cmd.Process.Kill() }) // fails if the process has ended
	defer kill.Stop()
	for line := range p.lines {
		p.log = append(p.log, line)
	}
	if err := p.cmd.Wait(); p.cmd.ProcessState == nil {
		p.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// Kill kills the process.
func (p *Program) Kill() {
	p.t.Helper()
	_ = p.cmd.Process.Kill() // fails if the process has ended
	p.Wait()
}

// Terminate sends SIGTERM, and checks that the process ends with status 0 and has logged a line
// that contains part.
func (p *Program) Terminate(part string) {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	if status := p.Wait(); status != 0 || p.Count(part) == 0 {
		p.t.Errorf("after SIGTERM: got status %d and %d lines with %q, want 0 and at least 1", status, p.Count(part), part)
	}
}
