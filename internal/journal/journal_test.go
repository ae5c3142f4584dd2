package journal_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/journal"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func ExampleSet() {
	folder, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder) //nolint:errcheck // it is temporary
	path := filepath.Join(folder, "addresses")
	s := journal.New(path)
	s.Add("10.96.0.1")
	s.Add("10.96.0.10")
	if err := s.Flush(); err != nil {
		fmt.Println(err)
	}
	s.Remove("10.96.0.1")
	if err := s.Flush(); err != nil {
		fmt.Println(err)
	}
	next := journal.New(path)
	whole, err := next.Load()
	fmt.Println(slices.Sorted(next.All()), whole, err)
	// Output: [10.96.0.10] true <nil>
}

func set(s *journal.Set) string { return strings.Join(slices.Sorted(s.All()), " ") }

func load(t *testing.T, path string) (*journal.Set, bool) {
	t.Helper()
	s := journal.New(path)
	whole, err := s.Load()
	testenv.NoError(t, err)
	return s, whole
}

func flush(t *testing.T, s *journal.Set) {
	t.Helper()
	testenv.NoError(t, s.Flush())
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	testenv.NoError(t, err)
	return text
}

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	testenv.NoError(t, os.WriteFile(path, text, 0o600))
}

// The file grows by one line for a change, whatever the size of the set, and not without limit.
func TestCostOfChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "set")
	s := journal.New(path)
	for i := range 10000 {
		s.Add(fmt.Sprint("10.96.0.", i))
	}
	flush(t, s)
	before := read(t, path)
	s.Add("another")
	flush(t, s)
	if after := read(t, path); !bytes.HasPrefix(after, before) || bytes.Count(after[len(before):], []byte("\n")) != 1 {
		t.Errorf("one change: got %d bytes after %d, want one line appended", len(after), len(before))
	}
	for range 20000 {
		s.Remove("another")
		s.Add("another")
		flush(t, s)
	}
	if n := bytes.Count(read(t, path), []byte("\n")); n > 2*s.Len()+1000 {
		t.Errorf("after many changes: got %d lines for %d strings", n, s.Len())
	}
	if next, whole := load(t, path); !whole || set(next) != set(s) {
		t.Error("after many changes: got another set from the file")
	}
}

// The begin of a file is a set of an earlier time. Any other damage is noticed.
func TestDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "set")
	s := journal.New(path)
	states := map[string]bool{"": true}
	flush(t, s)
	for _, change := range []func(){func() { s.Add("a") }, func() { s.Add("b") }, func() { s.Remove("a") }, func() { s.Add("c") }, func() { s.Remove("c") }} {
		change()
		flush(t, s)
		states[set(s)] = true
	}
	whole := read(t, path)
	if n := bytes.Count(whole, []byte("\n")); n != 5 {
		t.Fatalf("got %d lines, want 5, or the test shows nothing:\n%s", n, whole)
	}
	for n := range whole {
		write(t, path, whole[:n])
		if got, ok := load(t, path); !ok || !states[set(got)] {
			t.Errorf("the first %d bytes: got %q, %t, want one of %q", n, set(got), ok, slices.Sorted(maps.Keys(states)))
		}
		changed := bytes.Clone(whole)
		changed[n] ^= 1
		write(t, path, changed)
		if _, ok := load(t, path); ok && n < len(whole)-1 {
			t.Errorf("byte %d changed: got a whole file, want a damaged one", n)
		}
	}
	// What is left of a damaged file is written again as a whole.
	write(t, path, append([]byte("?\n"), whole[:len(whole)-1]...))
	got, _ := load(t, path)
	flush(t, got)
	if again, ok := load(t, path); !ok || set(again) != set(got) {
		t.Errorf("written again: got %q, %t, want %q", set(again), ok, set(got))
	}
}

// What could not be written is written later, and nothing is left of a failure.
func TestFailure(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "missing")
	path := filepath.Join(folder, "set")
	s := journal.New(path)
	s.Add("a")
	if s.Flush() == nil {
		t.Error("no folder: got no error, want one")
	}
	testenv.NoError(t, os.Mkdir(folder, 0o755))
	flush(t, s)
	testenv.NoError(t, os.Remove(path))
	s.Add("b")
	if s.Flush() == nil {
		t.Error("the file has vanished: got no error, want one")
	}
	flush(t, s)
	if got, whole := load(t, path); !whole || set(got) != "a b" {
		t.Errorf("got %q, want %q", set(got), "a b")
	}
	for range 2 {
		if err := s.Clear(); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != 0 {
		t.Errorf("after Clear: got %v, %v, want no file", left, err)
	}
	if _, err := journal.New(folder).Load(); err == nil {
		t.Error("a folder: got no error, want one")
	}
}

// Compact leaves one line for each string; a set without a path is kept in memory alone.
func TestCompact(t *testing.T) {
	path := filepath.Join(t.TempDir(), "set")
	s := journal.New(path)
	for range 3 {
		s.Add("a")
		flush(t, s)
		s.Remove("a")
		flush(t, s)
	}
	s.Add("a")
	s.Compact()
	flush(t, s)
	if n := bytes.Count(read(t, path), []byte("\n")); n != 1 {
		t.Errorf("got %d lines, want 1", n)
	}
	memory := journal.New("")
	memory.Add("a")
	flush(t, memory)
	if !memory.Has("a") || memory.Clear() != nil || memory.Has("a") || memory.Len() != 0 {
		t.Error("in memory: got another set than what was done")
	}
}

// Any file can be read, and what was read can be written and read again.
func FuzzLoad(f *testing.F) {
	f.Add([]byte("a e8b7be43\n-a 00000000\n"))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "set")
		write(t, path, text)
		got, _ := load(t, path)
		flush(t, got)
		if again, whole := load(t, path); !whole || set(again) != set(got) {
			t.Errorf("got %q, and %q, %t after writing it", set(got), set(again), whole)
		}
	})
}
