package xtables

import (
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
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/proxy"
)

// process runs programs in a network namespace.
type process struct{ namespace *netns.NS }

// program is a program to run, with its arguments, input and output.
type program struct {
	path string
	args []string
	in   []byte
	out  io.Writer
}

// outputWait is how long to wait for the output of a program that has ended or was
// killed: its children may keep the output open.
const outputWait = 2 * time.Second

// run runs a program to its end, and explains its failure. ran is true if the program was
// started.
//
// The program does not outlive this process: the kernel kills it when the thread that
// started it ends, and that thread waits for it.
func (p *process) run(ctx context.Context, prog program) (ran bool, err error) {
	in, err := file(prog.in)
	if err != nil {
		return false, fmt.Errorf("iptables: %w: %w", backends.ErrUnavailable, err)
	}
	defer in.Close() //nolint:errcheck // it is only in memory
	output := &tail{}
	cmd := prog.command(ctx)
	cmd.Stdin, cmd.Stderr = in, output
	err = p.namespace.Do(func() error {
		if err := cmd.Start(); err != nil {
			return err
		}
		ran = true
		return cmd.Wait()
	})
	switch {
	case !ran && err != nil:
		return false, fmt.Errorf("iptables: %w: %s: %w", backends.ErrUnavailable, prog.path, err)
	case ctx.Err() != nil:
		return true, context.Cause(ctx)
	case errors.Is(err, exec.ErrWaitDelay):
		return true, fmt.Errorf("%w: iptables: %s has ended, but a child of it still runs", proxy.ErrDataplaneLost, prog.path)
	case err != nil:
		return true, explain(err, output.kept)
	}
	return true, nil
}

func (p program) command(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.path, p.args...)
	cmd.Stdout = p.out
	cmd.WaitDelay = outputWait
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	cmd.Cancel = func() error { return killAll(cmd.Process) }
	return cmd
}

// killAll kills a process and its children.
func killAll(p *os.Process) error {
	if err := p.Kill(); err != nil {
		return err // the process has ended, and another one may have its PID
	}
	err := unix.Kill(-p.Pid, unix.SIGKILL)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// file returns a file in memory with some content. With a pipe, the switches between writer and
// program would cost a tenth of the time that the program needs for a long text.
func file(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("iptables", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "input of iptables")
	if _, err = f.WriteAt(content, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// tail is a writer that keeps the end of what is written to it.
type tail struct{ kept []byte }

// tailSize is the maximum length in bytes that a tail keeps.
const tailSize = 8 << 10

func (t *tail) Write(b []byte) (int, error) {
	n := len(b)
	b = b[max(0, n-tailSize):]
	if over := len(t.kept) + len(b) - tailSize; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	t.kept = append(t.kept, b...)
	return n, nil
}
