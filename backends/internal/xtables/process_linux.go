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
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/proxy"
)

// process runs programs in a network namespace.
type process struct{ namespace *netns.NS }

// program is a program to run, with its arguments, input and output.
type program struct {
	path string
	args []string
	in   io.Reader
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
	output := &tail{}
	cmd := prog.command(ctx)
	cmd.Stderr = output
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
	cmd.Stdin, cmd.Stdout = p.in, p.out
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

// input is the input of a program.
type input struct{ bytes.Reader }

func newInput(text []byte) *input {
	i := &input{}
	i.Reset(text)
	return i
}

const (
	// defaultPipe is the size of a new pipe in bytes, and largePipe the largest one that an
	// unprivileged process may set, unless fs.pipe-max-size was changed.
	defaultPipe = 64 << 10
	largePipe   = 1 << 20
)

// WriteTo implements [io.WriterTo], by which [exec.Cmd] fills the pipe to a program. It
// enlarges the pipe for a long text: with a small one, the switches between writer and
// program cost a tenth of the time that the program needs for the text.
func (i *input) WriteTo(w io.Writer) (int64, error) {
	if pipe, ok := w.(syscall.Conn); ok && i.Len() > defaultPipe {
		if raw, err := pipe.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				_, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, largePipe) // if that is not allowed, the pipe stays small
			})
		}
	}
	return i.Reader.WriteTo(w)
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
