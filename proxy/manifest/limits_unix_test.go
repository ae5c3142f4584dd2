//go:build unix

package manifest

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A file that could not be opened is read again, though its state is the same.
func TestFileThatCannotBeOpened(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", service("web", 80))
	path, old := filepath.Join(dir, "a.yaml"), time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	f, r := follow(t, path)
	none := before
	none.Cur = 0
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	untilStable(t, f)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := f.problems(); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("without file descriptors: got error %v, want %v", err, syscall.EMFILE)
	}
	untilStable(t, f)
	if err := f.problems(); err != nil || len(r.objects) != 1 {
		t.Errorf("with file descriptors: got %d objects and error %v, want the Service", len(r.objects), err)
	}
}
