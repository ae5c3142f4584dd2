package xtables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
)

// outputWait is how long to wait for the output of a program that has ended or was
// killed: its children may keep the output open.
const outputWait = 2 * time.Second

// run runs a program to its end, with some input, and explains its failure. ran is true if the program was
// started.
//
// The program does not outlive this process: the kernel kills it when the thread that
// started it ends, and that thread waits for it.
func (p *programs) run(ctx context.Context, in []byte, out io.Writer, path string, args ...string) (ran bool, err error) {
	stdin, err := file(in)
	if err != nil {
		return false, fmt.Errorf("iptables: %w: %w", backends.ErrUnavailable, err)
	}
	defer stdin.Close() //nolint:errcheck // it is only in memory
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, out, &output
	cmd.WaitDelay = outputWait
	// A program may be a script with the real one as its child, which would commit after Apply has returned.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	cmd.Cancel = func() error { return killAll(cmd.Process) }
	err = p.namespace.Do(func() error {
		if err := cmd.Start(); err != nil {
			return err
		}
		ran = true
		return cmd.Wait()
	})
	switch {
	case !ran && err != nil:
		return false, fmt.Errorf("iptables: %w: %s: %w", backends.ErrUnavailable, path, err)
	case ctx.Err() != nil:
		return true, context.Cause(ctx)
	case err != nil:
		return true, explain(err, output.Bytes())
	}
	return true, nil
}

// killAll kills a process that leads a process group, and the others of the group.
func killAll(p *os.Process) error {
	if err := p.Kill(); err != nil {
		return err // the process has ended, and another one may have its PID
	}
	_ = unix.Kill(-p.Pid, unix.SIGKILL) // nothing may be left of the group
	return nil
}

// file returns a file in memory with some content. With a pipe, the switches between writer and
// program would cost a tenth of the time that the program needs for a long text.
func file(content []byte) (*os.File, error) {
	// With the sysctl vm.memfd_noexec=2, some kernels refuse files that somebody may execute later.
	fd, err := unix.MemfdCreate("iptables", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // Linux before 6.3
		fd, err = unix.MemfdCreate("iptables", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "input of iptables")
	if _, err = f.WriteAt(content, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
