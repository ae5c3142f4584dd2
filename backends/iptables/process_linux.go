package iptables

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
	"github.com/vipkit/vipkit/proxy"
)

// process runs programs one at a time, in a place, and leaves none behind.
type process struct {
	place *place
	guard *guard // nil for programs that change nothing
}

// program is what to run.
type program struct {
	path string
	args []string
	in   io.Reader
	out  io.Writer
}

// lingering is how long the output of a program is waited for once it has ended, or
// was told to: what it has started itself may hold it open.
const lingering = 2 * time.Second

// run runs a program to its end, and explains how it ended. ran says that it was
// started.
//
// It does not outlive this process: the kernel kills it when the thread that started
// it ends, which therefore waits for it. What it has started itself may live on, but
// holds the guard then, so that nothing else is run meanwhile.
func (p *process) run(ctx context.Context, prog program) (ran bool, err error) {
	var held *os.File
	if p.guard != nil {
		held, err = p.guard.take(ctx)
	}
	if err != nil {
		return false, err
	}
	defer held.Close() //nolint:errcheck // nothing was written
	said := &tail{}
	cmd := prog.command(ctx, held)
	cmd.Stderr = said
	err = p.place.do(func() error {
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
		return true, fmt.Errorf("%w: iptables: %s has ended, but not a program that it started", proxy.ErrDataplaneLost, prog.path)
	case err != nil:
		return true, explain(err, said.kept)
	}
	return true, nil
}

// command is how a program is run while a guard is held, if there is one.
func (p program) command(ctx context.Context, held *os.File) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.path, p.args...)
	cmd.Stdin, cmd.Stdout = p.in, p.out
	cmd.WaitDelay = lingering
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	cmd.Cancel = func() error { return killAll(cmd.Process) }
	if held != nil {
		cmd.ExtraFiles = []*os.File{held}
	}
	return cmd
}

// killAll kills a process and those that it has started.
func killAll(p *os.Process) error {
	if err := p.Kill(); err != nil {
		return err // it has ended, and its number may be another's
	}
	err := unix.Kill(-p.Pid, unix.SIGKILL)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// input is what a program reads.
type input struct{ bytes.Reader }

func newInput(text []byte) *input {
	i := &input{}
	i.Reset(text)
	return i
}

const (
	// narrow is how much a pipe holds that nobody has widened, and wide how much
	// anybody may have it hold, unless the system says otherwise.
	narrow = 64 << 10
	wide   = 1 << 20
)

// WriteTo implements [io.WriterTo], by which [exec.Cmd] fills the pipe to a program. It
// has a long text wait for the program seldom: what a narrow pipe costs, in switching
// to and fro, is a tenth of what the program does with the text.
func (i *input) WriteTo(w io.Writer) (int64, error) {
	if pipe, ok := w.(syscall.Conn); ok && i.Len() > narrow {
		if raw, err := pipe.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				_, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, wide) // where that may not be, it stays narrow
			})
		}
	}
	return i.Reader.WriteTo(w)
}

// tail keeps the end of what is written to it.
type tail struct{ kept []byte }

// tailSize is how much is kept.
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
