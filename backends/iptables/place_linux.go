package iptables

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// place is the network namespace that a backend was made in.
type place struct {
	file  *os.File
	inode uint64
}

func here() (*place, error) {
	file, err := openNamespace()
	if err != nil {
		return nil, err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		_ = file.Close() // it was open for reading only
		return nil, err
	}
	return &place{file: file, inode: stat.Ino}, nil
}

func openNamespace() (*os.File, error) { return os.Open("/proc/thread-self/ns/net") }

// do does something in the namespace, whatever thread it is called on, and on one
// thread from begin to end. Where that is in the namespace already, no privilege is
// needed.
func (p *place) do(f func() error) error {
	result := make(chan error, 1)
	go func() { result <- p.doLocked(f) }()
	return <-result
}

func (p *place) doLocked(f func() error) error {
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
		return f()
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
	return f()
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
