package iptables

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// place is the network namespace that a backend was made in.
type place struct{ file *os.File }

func here() (*place, error) {
	file, err := openNamespace()
	if err != nil {
		return nil, err
	}
	return &place{file: file}, nil
}

func openNamespace() (*os.File, error) { return os.Open("/proc/thread-self/ns/net") }

// start starts a program in the namespace, whatever thread it is called on.
// Where that is in the namespace already, no privilege is needed.
func (p *place) start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	go func() { result <- p.startLocked(cmd) }()
	return <-result
}

func (p *place) startLocked(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	before, err := openNamespace()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer before.Close() //nolint:errcheck // it was open for reading only
	isThere, err := same(before, p.file)
	if err != nil || isThere {
		defer runtime.UnlockOSThread()
		if err != nil {
			return err
		}
		return cmd.Start()
	}
	defer func() {
		// A thread that cannot be led back stays locked, and ends with its
		// goroutine.
		if unix.Setns(int(before.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	if err := unix.Setns(int(p.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering the network namespace: %w", err)
	}
	return cmd.Start()
}

func same(a, b *os.File) (bool, error) {
	x, err := a.Stat()
	if err != nil {
		return false, err
	}
	y, err := b.Stat()
	if err != nil {
		return false, err
	}
	return os.SameFile(x, y), nil
}
