package servertest

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// patience is how long a server may take until it serves.
const patience = 2 * time.Minute

// Process is a program that runs until it is killed, or the test ends.
type Process struct {
	command *exec.Cmd
	logPath string
	ended   chan struct{} // closed when the process has ended
}

// Run starts a program. Its output is appended to a file, whose last part is in the failure
// messages of Await.
func Run(t testing.TB, logPath, program string, args ...string) *Process {
	t.Helper()
	p := &Process{command: exec.Command(program, args...), logPath: logPath, ended: make(chan struct{})}
	if err := p.start(); err != nil {
		t.Fatalf("starting %s: %v", program, err)
	}
	t.Cleanup(p.Kill)
	return p
}

func (p *Process) start() error {
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	p.command.Stdout, p.command.Stderr = log, log
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// Pdeathsig is sent when the thread ends, not the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer func() { _ = log.Close() }() // The program has a descriptor of its own.
		err := p.command.Start()
		started <- err
		if err == nil {
			_ = p.command.Wait() // Kill has ended it, or its log has the cause.
		}
		close(p.ended)
	}()
	return <-started
}

// Kill ends the process, and waits until it has ended. If it has ended already, Kill does
// nothing.
func (p *Process) Kill() {
	_ = p.command.Process.Kill() // fails if the process has ended
	<-p.ended
}

// Await waits until a URL of the process answers with 200 OK.
func (p *Process) Await(t testing.TB, client *http.Client, url string) {
	t.Helper()
	client.Timeout = 10 * time.Second
	limit, again := time.After(patience), time.NewTicker(50*time.Millisecond)
	defer again.Stop()
	for {
		last := get(client, url)
		if last == nil {
			return
		}
		select {
		case <-p.ended:
			t.Fatalf("%s ended before it served\n%s", p.command.Path, p.tail())
		case <-limit:
			t.Fatalf("%s does not serve after %v: %v\n%s", p.command.Path, patience, last, p.tail())
		case <-again.C:
		}
	}
}

func get(client *http.Client, url string) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // The body is not read.
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, response.Status)
	}
	return nil
}

// tail returns the end of the process's log.
func (p *Process) tail() string {
	const most = 4096
	text, err := os.ReadFile(p.logPath)
	if err != nil {
		return err.Error()
	}
	text = bytes.TrimSpace(text)
	return fmt.Sprintf("%s says:\n%s", filepath.Base(p.command.Path), text[max(0, len(text)-most):])
}
