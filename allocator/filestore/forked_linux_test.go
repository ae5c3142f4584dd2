package filestore

import (
	"syscall"
	"testing"
)

// TestCloseFreesTheLock has another process that shares all files for a moment, as each has
// that is started, and wants the lock to be free in this moment, too.
func TestCloseFreesTheLock(t *testing.T) {
	s, path := newFile(t)
	shared, err := syscall.Dup(int(s.lock.file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Close(shared); err != nil {
			t.Error(err)
		}
	}()
	shut(t, s)
	again, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	shut(t, again)
}
