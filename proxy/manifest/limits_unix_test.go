//go:build unix

package manifest

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// A file that could not be opened is read again, though its state is the same, and its error is
// reported once.
func TestFileThatCannotBeOpened(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", service("web", 80))
	path, old := filepath.Join(dir, "a.yaml"), time.Now().Add(-time.Hour)
	testenv.NoError(t, os.Chtimes(path, old, old))
	var before syscall.Rlimit
	testenv.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	f, r := follow(t, path)
	passes := 0
	f.Observe = func(Summary) { passes++ }
	none := before
	none.Cur = 0
	testenv.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	untilStable(t, f)
	untilStable(t, f)
	testenv.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before))
	if passes != 1 {
		t.Errorf("got %d passes that read something new, want 1", passes)
	}
	if err := f.problems(); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("without file descriptors: got error %v, want %v", err, syscall.EMFILE)
	}
	untilStable(t, f)
	if err := f.problems(); err != nil || len(r.objects) != 1 {
		t.Errorf("with file descriptors: got %d objects and error %v, want the Service", len(r.objects), err)
	}
}
