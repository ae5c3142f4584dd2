package filestore

import (
	"os"
	"testing"

	"github.com/vipkit/vipkit/allocator"
)

// TestAppendWaitsForTheDisk writes to a pipe, of which no disk can be waited for. An answer
// without an error would mean that nobody has tried.
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
		t.Error("a change was acknowledged that is on no disk")
	}
	if err := l.close(); err != nil {
		t.Error(err)
	}
	if n, err := out.Read(make([]byte, 1000)); err != nil || n == 0 {
		t.Errorf("%d bytes were written, error %v; the test shows nothing", n, err)
	}
}
