package filestore

import (
	"syscall"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestCloseFreesTheLock has a duplicate of the locked file descriptor, as a child process has
// between fork and exec, and checks that Close still frees the lock.
func TestCloseFreesTheLock(t *testing.T) {
	t.Parallel()
	s, path := newFile(t)
	shared, err := syscall.Dup(int(s.lock.file.Fd()))
	testenv.NoError(t, err)
	defer func() {
		if err := syscall.Close(shared); err != nil {
			t.Error(err)
		}
	}()
	shut(t, s)
	again, err := Open(path)
	testenv.NoError(t, err)
	shut(t, again)
}
