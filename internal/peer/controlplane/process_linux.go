package controlplane

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// process is a program that runs until it is killed, or this one ends.
type process struct {
	command *exec.Cmd
	logPath string
	ended   chan struct{} // closed when it has ended, however that was
}

// start runs a program that writes its output to the end of a file.
func start(logPath, program string, args ...string) (*process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", program, err)
	}
	p := &process{command: exec.Command(program, args...), logPath: logPath, ended: make(chan struct{})}
	p.command.Stdout, p.command.Stderr = log, log
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The kernel takes the end of the thread for the end of the parent.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer func() { _ = log.Close() }() // The program has its own.
		err := p.command.Start()
		started <- err
		if err == nil {
			_ = p.command.Wait() // It was killed, or its log says why it ended.
		}
		close(p.ended)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", program, err)
	}
	return p, nil
}

// kill ends the process at once, and waits until it has.
func (p *process) kill() {
	_ = p.command.Process.Kill() // It may have ended by itself.
	<-p.ended
}

// tail gives the end of what the process has said.
func (p *process) tail() string {
	const most = 4096
	text, err := os.ReadFile(p.logPath)
	if err != nil {
		return err.Error()
	}
	text = bytes.TrimSpace(text)
	return fmt.Sprintf("%s says:\n%s", filepath.Base(p.command.Path), text[max(0, len(text)-most):])
}
