package iptables

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Guards are of one identity, IP family and place.
func TestGuardsAreDisjoint(t *testing.T) {
	OwnLock(t)
	at := &place{inode: 1}
	own := newGuard(at, "iptables VIPKIT-", time.Second)
	held, err := own.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []*guard{
		newGuard(at, "ip6tables VIPKIT-", 0), newGuard(at, "iptables KUBE-", 0), newGuard(&place{inode: 2}, "iptables VIPKIT-", 0),
	} {
		file, err := other.take(t.Context())
		if err != nil {
			t.Fatalf("beside another guard: %v", err)
		}
		defer file.Close() //nolint:errcheck // nothing was written
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("somebody has had enough")
	cancel(why)
	if _, err := own.take(ctx); !errors.Is(err, why) {
		t.Errorf("with a context that has ended: got error %v, want %v", err, why)
	}
	own.wait = 0
	if _, err := own.take(t.Context()); err == nil || !strings.Contains(err.Error(), own.path) {
		t.Errorf("the same guard again: got error %v, want one with the path of the file", err)
	} else {
		means(t, "the same guard again", err, "unavailable locked")
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if held, err = own.take(t.Context()); err != nil {
		t.Fatalf("after it was let go: %v", err)
	}
	_ = held.Close() // nothing was written
}

// Where there can be no file, there is no guard, and iptables says what it needs. Where
// it only cannot be opened just now, nothing is done.
func TestNoGuard(t *testing.T) {
	for err, want := range map[error]bool{unix.EPERM: true, unix.EACCES: true, unix.ENOENT: true, unix.EROFS: true, unix.EMFILE: false, unix.EIO: false, nil: false} {
		if got := isPlaceless(&fs.PathError{Err: err}); got != want {
			t.Errorf("%v: there can be no file: got %t, want %t", err, got, want)
		}
	}
	t.Setenv("XTABLES_LOCKFILE", t.TempDir())
	if _, err := newGuard(&place{}, "", 0).take(t.Context()); err == nil {
		t.Error("a folder in the place of the file: got no error")
	} else {
		means(t, "a folder in the place of the file", err, "unavailable")
	}
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "nowhere", "lock"))
	file, err := newGuard(&place{}, "", 0).take(t.Context())
	if file != nil || err != nil {
		t.Errorf("without a folder for it: got %v, %v, want neither a file nor an error", file, err)
	}
}
