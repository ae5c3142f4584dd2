package testenv

import (
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start starts a program by within, which calls its argument on a thread that it has locked. The kernel kills the
// program when this process ends, in whatever way: otherwise it would keep what it uses, such as a namespace.
func Start(cmd *exec.Cmd, within func(func() error) error) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	started := make(chan error, 1)
	go func() {
		// For the kernel, the end of this thread is the end of the parent.
		err := within(func() error {
			if err := cmd.Start(); err != nil {
				return err
			}
			pid := cmd.Process.Pid
			started <- nil
			for err := error(unix.EINTR); err == unix.EINTR; { //nolint:errorlint // a system call returns it
				err = unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
			}
			return nil // The caller waits for the status.
		})
		if err != nil {
			started <- err
		}
	}()
	return <-started
}
