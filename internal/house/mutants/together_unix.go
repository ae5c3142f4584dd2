//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// endTogether makes the programs that a command starts end with it, if its context ends.
func endTogether(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
}
