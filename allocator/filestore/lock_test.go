package filestore_test

import (
	"go/build"
	"path/filepath"
	"testing"
)

// TestEverySystemHasALock checks that exactly one implementation of lock is built on every
// system, also on those that count as Unix and have no flock.
func TestEverySystemHasALock(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("lock_*.go")
	if err != nil || len(files) < 4 {
		t.Fatalf("files: got %v, error %v, want at least 4", files, err)
	}
	for system, want := range map[string]string{
		"linux": "lock_flock.go", "darwin": "lock_flock.go", "freebsd": "lock_flock.go", "netbsd": "lock_flock.go",
		"openbsd": "lock_flock.go", "dragonfly": "lock_flock.go", "illumos": "lock_flock.go",
		"windows": "lock_windows.go",
		"solaris": "lock_other.go", "aix": "lock_other.go", "plan9": "lock_other.go", "js": "lock_other.go", "wasip1": "lock_other.go",
	} {
		c := build.Context{GOOS: system, GOARCH: "amd64", Compiler: build.Default.Compiler}
		var got []string
		for _, name := range files {
			if ok, err := c.MatchFile(".", name); err != nil {
				t.Fatal(err)
			} else if ok && name != "lock_test.go" {
				got = append(got, name)
			}
		}
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s: got %v, want %s", system, got, want)
		}
	}
}
