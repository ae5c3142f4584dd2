package xtables

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
)

// guard is a lock that lets only one program of an identity, IP family and network namespace
// run at a time, whichever process started it. Without it, a process that was killed may
// leave a program that waits for the xtables lock, and writes outdated rules when it gets
// the lock.
//
// The guard locks one byte of the file that iptables locks as a whole; the two kinds of
// lock do not interfere. Programs and their children inherit the guard, which is released
// when the last of them has ended.
type guard struct {
	path string
	at   int64
	wait time.Duration
}

// newGuard makes a guard by the inode of a network namespace.
func newGuard(inode uint64, name string, wait time.Duration) *guard {
	return &guard{
		path: cmp.Or(os.Getenv("XTABLES_LOCKFILE"), "/run/xtables.lock"),
		at:   offset(inode, name), wait: wait,
	}
}

// offset returns the offset of the byte that is locked for a name in a namespace.
func offset(inode uint64, name string) int64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.NativeEndian.AppendUint64(nil, inode)) // writing to a hash never fails
	_, _ = h.Write([]byte(name))
	return int64(h.Sum64() >> 2)
}

// retry is the interval at which a guard that another program holds is tried again.
const retry = 5 * time.Millisecond

// take waits for the guard, which is held until all copies of the file are closed, including
// those that programs have inherited. If the file cannot be opened there is no guard, and the
// file is nil: flavour nft, which does not need the xtables lock, still works.
func (g *guard) take(ctx context.Context) (*os.File, error) {
	file, err := os.OpenFile(g.path, os.O_RDWR|os.O_CREATE, 0o600)
	switch {
	case isNoFile(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("iptables: %w: %w", backends.ErrUnavailable, err)
	}
	if err := g.lock(ctx, file); err != nil {
		_ = file.Close() // nothing was written
		return nil, err
	}
	return file, nil
}

// isNoFile reports whether the file to lock cannot exist on this system.
func isNoFile(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EROFS)
}

func (g *guard) lock(ctx context.Context, file *os.File) error {
	what := unix.Flock_t{Type: unix.F_WRLCK, Start: g.at, Len: 1}
	var deadline <-chan time.Time
	for {
		err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &what)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES):
			return fmt.Errorf("iptables: %w: locking %s: %w", backends.ErrUnavailable, g.path, err)
		}
		if deadline == nil {
			deadline = time.After(g.wait)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline:
			return fmt.Errorf("iptables: %w: %w: a program that an earlier process of this backend started, or a child of it, "+
				"is still running after %v: find it with lsof %s and end it", backends.ErrUnavailable, ErrLocked, g.wait, g.path)
		case <-time.After(retry):
		}
	}
}
