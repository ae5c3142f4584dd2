package xtables

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Guards of different identities, IP families or network namespaces are independent.
func TestGuardsAreDisjoint(t *testing.T) {
	t.Parallel()
	const at = 1
	own := newGuard(at, "iptables VIPKIT-", time.Second)
	held, err := own.take(t.Context())
	testenv.NoError(t, err)
	for _, other := range []*guard{
		newGuard(at, "ip6tables VIPKIT-", 0), newGuard(at, "iptables KUBE-", 0), newGuard(2, "iptables VIPKIT-", 0),
	} {
		file, err := other.take(t.Context())
		if err != nil {
			t.Fatalf("beside another guard: %v", err)
		}
		defer file.Close() //nolint:errcheck // nothing was written
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("the caller stopped")
	cancel(reason)
	if _, err := own.take(ctx); !errors.Is(err, reason) {
		t.Errorf("with a context that has ended: got error %v, want %v", err, reason)
	}
	own.wait = 0
	if _, err := own.take(t.Context()); err == nil || !strings.Contains(err.Error(), own.path) {
		t.Errorf("the same guard again: got error %v, want one with the path of the file", err)
	} else {
		means(t, "the same guard again", err, "unavailable locked")
	}
	testenv.NoError(t, held.Close())
	if held, err = own.take(t.Context()); err != nil {
		t.Fatalf("after the guard was released: %v", err)
	}
	_ = held.Close() // nothing was written
}

// If the file cannot exist, there is no guard, and iptables reports what it needs. If the file
// only cannot be opened at the moment, take fails.
func TestNoGuard(t *testing.T) {
	for err, want := range map[error]bool{unix.EPERM: true, unix.EACCES: true, unix.ENOENT: true, unix.EROFS: true, unix.EMFILE: false, unix.EIO: false, nil: false} {
		if got := isNoFile(&fs.PathError{Err: err}); got != want {
			t.Errorf("isNoFile(%v): got %t, want %t", err, got, want)
		}
	}
	t.Setenv("XTABLES_LOCKFILE", t.TempDir())
	if _, err := newGuard(0, "", 0).take(t.Context()); err == nil {
		t.Error("a folder as lock file: got no error, want one")
	} else {
		means(t, "a folder as lock file", err, "unavailable")
	}
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "nowhere", "lock"))
	file, err := newGuard(0, "", 0).take(t.Context())
	if file != nil || err != nil {
		t.Errorf("without a folder for the file: got file %v, error %v, want neither", file, err)
	}
}
