package filestore

import (
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestAppendWaitsForTheDisk writes to a pipe, which cannot be synced. Append without an error
// would mean that it does not sync.
func TestAppendWaitsForTheDisk(t *testing.T) {
	t.Parallel()
	out, in, err := os.Pipe()
	testenv.NoError(t, err)
	defer func() {
		if err := out.Close(); err != nil {
			t.Error(err)
		}
	}()
	l := &log{file: in, full: fullFrame}
	claim := allocator.Claim{Key: allocator.PortKey(1), Owner: "me", Token: 1, Version: 1}
	if err := l.Append([]allocator.Event{{Claim: claim}}); err == nil {
		t.Error("Append to a pipe: got no error, want that of Sync")
	}
	if err := l.close(); err != nil {
		t.Error(err)
	}
	if n, err := out.Read(make([]byte, 1000)); err != nil || n == 0 {
		t.Errorf("bytes written: got %d, error %v, want some", n, err)
	}
}

// TestFramesAreSyncedInOrder appends changes of several frames to a pipe, which cannot be
// synced. The second frame must not be written: after a crash, the disk could have it without
// the first one, which looks like damage.
func TestFramesAreSyncedInOrder(t *testing.T) {
	t.Parallel()
	out, in, err := os.Pipe()
	testenv.NoError(t, err)
	l := &log{file: in, full: 1, head: head{salt: 1}}
	var changes []allocator.Event
	for version := range allocator.Version(3) {
		claim := allocator.Claim{Key: allocator.PortKey(1), Owner: "me", Token: 1, Version: version + 1}
		changes = append(changes, allocator.Event{Claim: claim})
	}
	if err := l.Append(changes); err == nil {
		t.Error("Append to a pipe: got no error, want that of Sync")
	}
	if err := l.close(); err != nil {
		t.Error(err)
	}
	written, err := io.ReadAll(out)
	testenv.NoError(t, err)
	if _, length := l.head.readFrame(written); length == 0 || length != len(written) {
		t.Errorf("got %d bytes, the first frame has %d, want only that frame", len(written), length)
	}
	if err := out.Close(); err != nil {
		t.Error(err)
	}
}

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
