package iptables

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

// guard lets the programs that an identity runs for one IP family in a network namespace
// run one at a time, whichever process started them. A process that was killed may leave
// behind a program that still waits for the lock of iptables, and would write outdated
// rules once it gets it.
//
// It is a lock of one byte of the file that iptables itself locks, of a kind
// that does not interfere with that. Programs inherit it, and whatever they start
// does too: it is free when the last of them has ended.
type guard struct {
	path string
	at   int64
	wait time.Duration
}

func newGuard(at *place, name string, wait time.Duration) *guard {
	return &guard{
		path: cmp.Or(os.Getenv("XTABLES_LOCKFILE"), "/run/xtables.lock"),
		at:   at.offset(name), wait: wait,
	}
}

// offset gives a name of its own to what belongs together in a place.
func (p *place) offset(name string) int64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.NativeEndian.AppendUint64(nil, p.inode)) // a hash takes anything
	_, _ = h.Write([]byte(name))
	return int64(h.Sum64() >> 2)
}

// retry is how often a guard that others hold is tried.
const retry = 5 * time.Millisecond

// take waits for the guard, and holds it until all copies of the file are closed, also
// those that programs have inherited. If the file cannot be opened there is no guard, and
// the file is nil: flavour nft, which needs no lock of iptables, works all the same.
func (g *guard) take(ctx context.Context) (*os.File, error) {
	file, err := os.OpenFile(g.path, os.O_RDWR|os.O_CREATE, 0o600)
	switch {
	case isPlaceless(err):
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

// isPlaceless reports whether there can be no file to lock.
func isPlaceless(err error) bool {
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
