package filestore

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// smallDiskVariable in the environment tells TestDiskFull that it runs in a mount namespace of its own.
const smallDiskVariable = "FILESTORE_TEST_SMALL_DISK"

// TestDiskFull fills the disk of a store, and frees it again: commits fail with the error of the
// system, reads go on, and the next commits succeed without opening the store again.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	if os.Getenv(smallDiskVariable) == "" {
		inMountNamespace(t)
		return
	}
	folder := t.TempDir()
	testenv.NoError(t, syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=64k"))
	defer func() {
		if err := syscall.Unmount(folder, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	path := filepath.Join(folder, "map")
	s := open(t, path)
	testenv.NoError(t, s.Create(t.Context()))
	want := fill(t, s)
	before := len(content(t, path))
	checkFull(t, s, want)
	testenv.Same(t, before, len(content(t, path)), "length of the file after commits that failed")
	testenv.NoError(t, os.Remove(filepath.Join(folder, "other")))
	want = append(want, mustCommit(t, s, 7, 10_000))
	shut(t, s)
	state, err := open(t, path).Load(t.Context())
	testenv.NoError(t, err)
	storetest.WantClaims(t, want, state.Claims)
	shut(t, s)
}

// inMountNamespace runs the test in a process that may mount.
func inMountNamespace(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), smallDiskVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if errors.As(err, new(*os.PathError)) { // The kernel refuses to start the process.
		testenv.CannotRun(t, "needs root or user namespaces: the test mounts a small disk")
	}
	if err != nil || !strings.Contains(string(out), "PASS: "+t.Name()) {
		t.Fatalf("%v\n%s", err, out)
	}
}

// fill writes a claim, and then another file until the disk is full.
func fill(t *testing.T, s *Store) []allocator.Claim {
	t.Helper()
	claim := mustCommit(t, s, 1, 100)
	other, err := os.Create(filepath.Join(filepath.Dir(s.path), "other"))
	testenv.NoError(t, err)
	for err == nil {
		_, err = other.Write(make([]byte, os.Getpagesize()))
	}
	if err := errors.Join(err, other.Close()); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk: got error %v, want %v", err, syscall.ENOSPC)
	}
	return []allocator.Claim{claim}
}

// checkFull checks that commits fail several times, and that reads go on.
func checkFull(t *testing.T, s *Store, want []allocator.Claim) {
	t.Helper()
	for range 3 {
		if _, err := commitLong(t, s, 7, 10_000); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("a full disk: got error %v, want %v", err, syscall.ENOSPC)
		}
		state, err := s.Load(t.Context())
		if err != nil {
			t.Fatalf("reading with a full disk: %v", err)
		}
		storetest.WantClaims(t, want, state.Claims)
	}
}

// commitLong commits a claim whose owner has a name of this length.
func commitLong(t *testing.T, s *Store, port uint16, length int) (allocator.Claim, error) {
	t.Helper()
	c := allocator.Claim{Key: allocator.PortKey(port), Owner: allocator.Owner(strings.Repeat("x", length)), Token: 1}
	versions, err := s.Commit(t.Context(), []allocator.Op{{Claim: c}})
	if err == nil {
		c.Version = versions[0]
	}
	return c, err
}

func mustCommit(t *testing.T, s *Store, port uint16, length int) allocator.Claim {
	t.Helper()
	c, err := commitLong(t, s, port, length)
	testenv.NoError(t, err)
	return c
}

// TestFileCannotBeTruncated checks that a store whose file can neither be written nor truncated fails
// each call, and works again when the file can be.
func TestFileCannotBeTruncated(t *testing.T) {
	t.Parallel()
	s, path := newFile(t)
	want := mustCommit(t, s, 1, 100)
	good := s.log.file
	reader, err := os.Open(path)
	testenv.NoError(t, err)
	s.log.file = reader
	_, err = commitLong(t, s, 2, 100)
	_, readErr := s.Load(t.Context())
	if err == nil || readErr == nil {
		t.Errorf("a file that cannot be written: Commit got error %v, Load %v, want errors", err, readErr)
	}
	s.log.file = good
	state, err := s.Load(t.Context())
	testenv.NoError(t, err)
	storetest.WantClaims(t, []allocator.Claim{want}, state.Claims)
	second := mustCommit(t, s, 2, 100)
	shut(t, s)
	if err := reader.Close(); err != nil {
		t.Error(err)
	}
	if state, err = open(t, path).Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	storetest.WantClaims(t, []allocator.Claim{want, second}, state.Claims)
}

// TestLogIsAway checks that a store goes on with its log when it could not be opened again at first.
func TestLogIsAway(t *testing.T) {
	t.Parallel()
	s, path := newFile(t)
	want := mustCommit(t, s, 1, 100)
	testenv.NoError(t, errors.Join(s.log.shut(), os.Rename(path, path+".away")))
	if err := s.log.Rollback(); err == nil {
		t.Error("Rollback without the file: got no error, want one")
	}
	testenv.NoError(t, os.Rename(path+".away", path))
	testenv.NoError(t, s.log.Rollback())
	second := mustCommit(t, s, 2, 100)
	shut(t, s)
	state, err := open(t, path).Load(t.Context())
	testenv.NoError(t, err)
	storetest.WantClaims(t, []allocator.Claim{want, second}, state.Claims)
}

// TestVersionOutlivesTheLog checks that a log that was rewritten has the version of its state, also if
// the claim that had it is deleted.
func TestVersionOutlivesTheLog(t *testing.T) {
	t.Parallel()
	_, state, _, err := replay(head{}.appendFrame(head{}.bytes(), snapshot(allocator.State{
		Claims: []allocator.Claim{{Key: allocator.PortKey(1), Owner: "me", Token: 1, Version: 3}}, Version: 9,
	})))
	if err != nil || state.Version != 9 || len(state.Claims) != 1 {
		t.Errorf("got %+v, error %v, want a claim, and version 9", state, err)
	}
}
