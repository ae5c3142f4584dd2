package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/netns"
)

// patience bounds every wait.
const patience = 20 * time.Second

// program is a process that runs the program in a network namespace.
type program struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string
	log   []string // what has been taken from lines
}

// start starts the program. It ends with the test at the latest.
func start(t *testing.T, ns *netns.NS, setUp func(*exec.Cmd), flags ...string) *program {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, cmd: exec.Command(exe, flags...), lines: make(chan string, 1000)}
	p.cmd.Env = append(os.Environ(), actVariable+"=1")
	if setUp != nil {
		setUp(p.cmd)
	}
	// The process ends when the other end of its standard input does.
	if _, err := p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(p.cmd.Start); err != nil {
		t.Fatal(err)
	}
	go p.read(out)
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill() // It may have just ended.
			p.end()
		}
		if t.Failed() {
			t.Logf("manifestproxy %s logged\n%s", strings.Join(flags, " "), strings.Join(p.log, "\n"))
		}
	})
	return p
}

func (p *program) read(out io.Reader) {
	defer close(p.lines)
	for s := bufio.NewScanner(out); s.Scan(); {
		p.lines <- s.Text()
	}
}

// await waits for a line with all of these parts.
func (p *program) await(parts ...string) {
	p.t.Helper()
	for timeout := time.After(patience); ; {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("the program ended without logging a line with %q", parts)
			}
			p.log = append(p.log, line)
			if hasAll(line, parts) {
				return
			}
		case <-timeout:
			p.t.Fatalf("no line with %q is logged within %v", parts, patience)
		}
	}
}

func hasAll(line string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(line, part) {
			return false
		}
	}
	return true
}

// end waits until the process has ended, and gives its status: -1 if it had to
// be killed.
func (p *program) end() int {
	p.t.Helper()
	kill := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() }) // It may have just ended.
	defer kill.Stop()
	for line := range p.lines {
		p.log = append(p.log, line)
	}
	if err := p.cmd.Wait(); p.cmd.ProcessState == nil {
		p.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// terminate asks the process to end, and checks that it does so in order.
func (p *program) terminate() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	p.await("stopped; the rules stay")
	if status := p.end(); status != 0 {
		p.t.Errorf("the status after SIGTERM is %d, wanted 0", status)
	}
}

// logCount gives how many lines of the log have all of these parts.
func (p *program) logCount(parts ...string) int {
	n := 0
	for _, line := range p.log {
		if hasAll(line, parts) {
			n++
		}
	}
	return n
}

// wantRun runs the program to its end and checks its status and that its log
// has one line with all parts.
func wantRun(t *testing.T, ns *netns.NS, flags []string, status int, parts ...string) *program {
	t.Helper()
	p := start(t, ns, nil, flags...)
	if got := p.end(); got != status {
		t.Errorf("the status is %d, wanted %d", got, status)
	}
	if n := p.logCount(parts...); n != 1 {
		t.Errorf("%d lines with %q are logged, wanted one", n, parts)
	}
	return p
}
