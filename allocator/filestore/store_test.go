package filestore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/filestore"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func mustOpen(t testing.TB, path string) *filestore.Store {
	t.Helper()
	s, err := filestore.Open(path)
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, s)
	testenv.NoError(t, s.Create(context.Background()))
	return s
}

func mustClose(t testing.TB, s *filestore.Store) {
	t.Helper()
	testenv.NoError(t, s.Close())
}

func TestContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) allocator.Store { return mustOpen(t, filepath.Join(t.TempDir(), "map")) })
}

// contents returns the claims of a store, in order of their keys.
func contents(t testing.TB, s allocator.Store) []allocator.Claim {
	t.Helper()
	state, err := s.Load(t.Context())
	testenv.NoError(t, err)
	slices.SortFunc(state.Claims, func(a, b allocator.Claim) int { return a.Key.Compare(b.Key) })
	return state.Claims
}

// put commits a new bound claim.
func put(t testing.TB, s allocator.Store, i int) {
	t.Helper()
	c := allocator.Claim{Key: storetest.Key(i), Owner: "me", Token: uint64(i + 1)}
	if _, err := s.Commit(t.Context(), []allocator.Op{{Claim: c}}); err != nil {
		t.Fatal(err)
	}
}

// TestTornRecord cuts the file at every byte of its last records, and may append garbage. The
// store must have all complete records, and must be able to write.
func TestTornRecord(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "map")
	s := mustOpen(t, path)
	var ends []int
	for i := range 4 {
		put(t, s, i)
		ends = append(ends, int(fileSize(t, path)))
	}
	all := contents(t, s)
	mustClose(t, s)
	whole, err := os.ReadFile(path)
	testenv.NoError(t, err)
	for cut := ends[1]; cut < len(whole); cut++ {
		for _, tail := range []string{"", "\x00\x00\x00\x00\x00\x00\x00\x00", "garbage"} {
			content := append(slices.Clone(whole[:cut]), tail...)
			testenv.NoError(t, os.WriteFile(path, content, 0o600))
			torn := mustOpen(t, path)
			kept := 2
			for _, end := range ends[2:] {
				if bytes.HasPrefix(content, whole[:end]) { // The tail may equal the bytes that were cut off.
					kept++
				}
			}
			storetest.WantClaims(t, all[:kept], contents(t, torn))
			if got, want := fileSize(t, path), int64(ends[kept-1]); got != want {
				t.Errorf("cut at %d with tail %q, then opened: %d bytes, want %d", cut, tail, got, want)
			}
			put(t, torn, 9)
			mustClose(t, torn)
			again := mustOpen(t, path)
			if got := len(contents(t, again)); got != kept+1 {
				t.Fatalf("cut at %d with tail %q, then written: %d claims, want %d", cut, tail, got, kept+1)
			}
			mustClose(t, again)
		}
	}
}

func fileSize(t testing.TB, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	testenv.NoError(t, err)
	return info.Size()
}

// TestDamage flips a bit within an early record, which no crash can do.
func TestDamage(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "map")
	s := mustOpen(t, path)
	for i := range 3 {
		put(t, s, i)
	}
	mustClose(t, s)
	whole, err := os.ReadFile(path)
	testenv.NoError(t, err)
	for _, at := range []int{0, 25, 30, 40} {
		damaged := slices.Clone(whole)
		damaged[at] ^= 4
		testenv.NoError(t, os.WriteFile(path, damaged, 0o600))
		_, err := filestore.Open(path)
		if _, ok := errors.AsType[*filestore.CorruptError](err); !ok {
			t.Errorf("bit flipped at byte %d: got error %v, want a CorruptError", at, err)
		}
		after, err := os.ReadFile(path)
		if err != nil || !slices.Equal(after, damaged) {
			t.Errorf("bit flipped at byte %d: file after opening: got it changed, error %v, want it unchanged", at, err)
		}
	}
}

// TestCommitsShareAWrite has many goroutines that commit at once, and opens the file again.
func TestCommitsShareAWrite(t *testing.T) {
	t.Parallel()
	const callers, each = 64, 20
	path := filepath.Join(t.TempDir(), "map")
	s := mustOpen(t, path)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				claim := allocator.Claim{Key: storetest.Key(c*each + i), Owner: allocator.Owner(fmt.Sprint(c)), Token: 1}
				if _, err := s.Commit(t.Context(), []allocator.Op{{Claim: claim}}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	all := contents(t, s)
	testenv.Same(t, callers*each, len(all), "claims")
	if _, err := s.Commit(t.Context(), []allocator.Op{{Claim: all[0], Delete: true}}); err != nil {
		t.Fatal(err)
	}
	before, err := s.Load(t.Context())
	testenv.NoError(t, err)
	mustClose(t, s)
	after, err := mustOpen(t, path).Load(t.Context())
	if err != nil || after.Version != before.Version {
		t.Errorf("version after opening again: got %d, error %v, want %d", after.Version, err, before.Version)
	}
	storetest.WantClaims(t, all[1:], after.Claims)
}

// TestLockHasManyNames checks that a file has one lock under all its names, and that a process
// that changes its working directory still uses the same file.
func TestLockHasManyNames(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	s := mustOpen(t, "map")
	testenv.NoError(t, os.Symlink("map", "link"))
	testenv.NoError(t, os.Symlink(dir, "here"))
	for _, name := range []string{"map", "./map", "link", "here/map", filepath.Join(dir, "map")} {
		if other, err := filestore.Open(name); !errors.Is(err, filestore.ErrLocked) {
			t.Errorf("Open(%q) beside an open store: got error %v, want %v", name, err, filestore.ErrLocked)
			if err == nil {
				mustClose(t, other)
			}
		}
	}
	t.Chdir(t.TempDir())
	if _, err := s.Load(t.Context()); err != nil {
		t.Errorf("Load after a change of the working directory: %v", err)
	}
}
