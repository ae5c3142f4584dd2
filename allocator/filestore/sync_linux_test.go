package filestore

import (
	"os"
	"testing"

	"github.com/vipkit/vipkit/allocator"
)

// TestAppendWaitsForTheDisk writes to a pipe, which cannot be synced. Append without an error
// would mean that it does not sync.
func TestAppendWaitsForTheDisk(t *testing.T) {
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
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
