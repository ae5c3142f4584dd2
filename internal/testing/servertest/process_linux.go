package servertest

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// patience is how long a server may take until it serves.
const patience = 2 * time.Minute

// Process is a program that runs until it is killed, or the test ends.
type Process struct {
	command *exec.Cmd
	logPath string
	ended   chan struct{} // closed when the process has ended
	err     error         // how it has ended
}

// Run starts a program. Its output is appended to a file, whose last part is in the failure
// messages of Await.
func Run(t testing.TB, logPath, program string, args ...string) *Process {
	t.Helper()
	return Start(t, logPath, exec.Command(program, args...), func(start func() error) error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		return start()
	})
}

// Start is Run where within starts the program, such as in a network namespace: see [testenv.Start].
func Start(t testing.TB, logPath string, command *exec.Cmd, within func(func() error) error) *Process {
	t.Helper()
	p := &Process{command: command, logPath: logPath, ended: make(chan struct{})}
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	testenv.NoError(t, err)
	defer func() { _ = log.Close() }() // The program has a descriptor of its own.
	command.Stdout, command.Stderr = log, log
	if err := testenv.Start(command, within); err != nil {
		t.Fatalf("starting %s: %v", command.Path, err)
	}
	go func() {
		p.err = command.Wait()
		close(p.ended)
	}()
	t.Cleanup(p.Kill)
	return p
}

// ID returns the process ID.
func (p *Process) ID() int { return p.command.Process.Pid }

// Signal sends a signal to the process. If it has ended already, Signal does nothing.
func (p *Process) Signal(signal os.Signal) { _ = p.command.Process.Signal(signal) }

// Wait waits until the process has ended, and returns an error unless its status is 0.
func (p *Process) Wait() error {
	<-p.ended
	return p.err
}

// Kill ends the process, and waits until it has ended. If it has ended already, Kill does
// nothing.
func (p *Process) Kill() {
	p.Signal(os.Kill)
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
