package xtables

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespace is the network namespace that a backend programs.
type namespace struct {
	file  *os.File
	inode uint64
}

// currentNamespace returns the namespace of the calling thread.
func currentNamespace() (*namespace, error) {
	file, err := openNamespace()
	if err != nil {
		return nil, err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		_ = file.Close() // it is open for reading only
		return nil, err
	}
	return &namespace{file: file, inode: stat.Ino}, nil
}

func openNamespace() (*os.File, error) { return os.Open("/proc/thread-self/ns/net") }

// do runs f in the namespace, on one thread from begin to end. It needs no privilege if
// that thread is in the namespace already.
func (n *namespace) do(f func() error) error {
	result := make(chan error, 1)
	go func() { result <- n.doLocked(f) }()
	return <-result
}

func (n *namespace) doLocked(f func() error) error {
	runtime.LockOSThread()
	before, err := openNamespace()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer before.Close() //nolint:errcheck // it is open for reading only
	isThere, err := same(before, n.file)
	if err != nil || isThere {
		defer runtime.UnlockOSThread()
		if err != nil {
			return err
		}
		return f()
	}
	defer func() {
		// A thread that cannot return to its namespace stays locked, and ends
		// with its goroutine.
		if unix.Setns(int(before.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
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
