package filestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func claims(n int, version allocator.Version, owner string) []allocator.Event {
	all := make([]allocator.Event, n)
	for i := range all {
		all[i].Claim = allocator.Claim{Key: allocator.PortKey(uint16(i + 1)), Owner: allocator.Owner(owner), Token: uint64(i), Version: version}
	}
	return all
}

// newFile makes a store with these claims, and gives it and its path.
func newFile(t *testing.T, from ...allocator.Claim) (*Store, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "map")
	s := open(t, path)
	testenv.NoError(t, s.Create(t.Context(), from...))
	return s, path
}

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(path)
	testenv.NoError(t, err)
	t.Cleanup(func() { shut(t, s) })
	return s
}

func shut(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func content(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	testenv.NoError(t, err)
	return b
}

// frames counts the frames of a file. All must be valid.
func frames(t *testing.T, content []byte) (n int) {
	t.Helper()
	h, err := readHead(content)
	testenv.NoError(t, err)
	for content = content[headSize:]; len(content) > 0; n++ {
		_, length := h.readFrame(content)
		if length == 0 {
			t.Fatalf("frame %d: got an invalid one, want a valid one", n)
		}
		content = content[length:]
	}
	return n
}

// TestManyFrames checks that a rewritten log has frames of about the limit, and that the
// changes of a commit stay in one frame.
func TestManyFrames(t *testing.T) {
	t.Parallel()
	const limit = 200
	var first []allocator.Claim
	for _, e := range claims(50, 0, "me") {
		first = append(first, e.Claim)
	}
	s, path := newFile(t, first...)
	testenv.Same(t, 1, frames(t, content(t, path)), "frames of the first file")
	want, err := s.Load(t.Context())
	testenv.NoError(t, err)
	s.log.full = limit
	// These claims make the log too long.
	more := claims(20, 0, strings.Repeat("x", minSlack/10))
	var ops []allocator.Op
	for i := range more {
		more[i].Claim.Key = allocator.PortKey(uint16(1000 + i))
		ops = append(ops, allocator.Op{Claim: more[i].Claim})
	}
	versions, err := s.Commit(t.Context(), ops)
	testenv.NoError(t, err)
	for i, v := range versions {
		more[i].Claim.Version = v
		want.Claims = append(want.Claims, more[i].Claim)
	}
	if got := frames(t, content(t, path)); got < 15 {
		t.Errorf("frames of the rewritten log: got %d, want at least 15", got)
	}
	before := frames(t, content(t, path))
	for i := range ops {
		ops[i].Claim.Version, ops[i].Delete = versions[i], true
	}
	if _, err := s.Commit(t.Context(), ops[1:]); err != nil {
		t.Fatal(err)
	}
	if got := frames(t, content(t, path)); got != before+1 {
		t.Errorf("frames of one commit: got %d, want 1", got-before)
	}
	shut(t, s)
	got, err := open(t, path).Load(t.Context())
	testenv.NoError(t, err)
	want.Claims = want.Claims[:51]
	storetest.WantClaims(t, want.Claims, got.Claims)
}

// TestTornSnapshot checks that a damaged snapshot, which was on the disk before the file was
// renamed, is an error and not truncated: the lost claims would be free.
func TestTornSnapshot(t *testing.T) {
	t.Parallel()
	var first []allocator.Claim
	for _, e := range claims(50, 0, "me") {
		first = append(first, e.Claim)
	}
	s, path := newFile(t, first...)
	shut(t, s)
	whole := content(t, path)
	for _, cut := range []int{len(whole) - 1, headSize + 5, headSize, headSize - 1, len(title), 0} {
		testenv.NoError(t, os.WriteFile(path, whole[:cut], 0o600))
		if _, err := Open(path); !isCorrupt(err) {
			t.Errorf("cut at %d of %d: got error %v, want a CorruptError", cut, len(whole), err)
		}
	}
	for at := range headSize {
		damaged := slices.Clone(whole)
		damaged[at] ^= 1
		testenv.NoError(t, os.WriteFile(path, damaged, 0o600))
		if _, err := Open(path); !isCorrupt(err) {
			t.Errorf("bit flipped at byte %d: got error %v, want a CorruptError", at, err)
		}
	}
}

func isCorrupt(err error) bool {
	_, ok := errors.AsType[*CorruptError](err)
	return ok
}

// TestOwnerLikeAFrame checks that a torn record does not count as damage because the name of
// its owner looks like a valid frame.
func TestOwnerLikeAFrame(t *testing.T) {
	t.Parallel()
	s, path := newFile(t)
	name := string(head{}.appendFrame(nil, claims(3, 5, "other")))
	op := allocator.Op{Claim: allocator.Claim{Key: allocator.PortKey(9), Owner: allocator.Owner("x" + name), Token: 1}}
	if _, err := s.Commit(t.Context(), []allocator.Op{op}); err != nil {
		t.Fatal(err)
	}
	shut(t, s)
	whole := content(t, path)
	testenv.NoError(t, os.WriteFile(path, whole[:len(whole)-1], 0o600))
	state, err := open(t, path).Load(t.Context())
	if err != nil || len(state.Claims) != 0 {
		t.Errorf("got %v, error %v, want nothing", state.Claims, err)
	}
}

// TestGarbageIsCountedAfterARestart checks that a log does not grow with every restart.
func TestGarbageIsCountedAfterARestart(t *testing.T) {
	t.Parallel()
	s, path := newFile(t)
	claim := allocator.Claim{Key: allocator.PortKey(1), Owner: allocator.Owner(strings.Repeat("x", 50_000)), Token: 1}
	for range 6 {
		for range 16 { // 800 kB
			versions, err := s.Commit(t.Context(), []allocator.Op{{Claim: claim}})
			testenv.NoError(t, err)
			claim.Version = versions[0]
		}
		shut(t, s)
		s = open(t, path)
	}
	if got, most := len(content(t, path)), minSlack+3*50_000; got > most {
		t.Errorf("length of the log of one claim: got %d bytes, want at most %d", got, most)
	}
}

// TestNoRoomToRewrite checks that the store continues with its log if it cannot write a new
// one.
func TestNoRoomToRewrite(t *testing.T) {
	t.Parallel()
	s, path := newFile(t)
	testenv.NoError(t, os.MkdirAll(filepath.Join(path+".new", "in the way"), 0o700))
	tries, state := 0, s.log.state
	s.log.state = func(ctx context.Context) (allocator.State, error) { tries++; return state(ctx) }
	claim := allocator.Claim{Key: allocator.PortKey(1), Owner: allocator.Owner(strings.Repeat("x", 100_000)), Token: 1}
	for i := range 30 { // 3 MB
		versions, err := s.Commit(t.Context(), []allocator.Op{{Claim: claim}})
		if err != nil {
			t.Fatalf("commit %d: %v", i, err)
		}
		claim.Version = versions[0]
	}
	if tries < 1 || tries > 3 {
		t.Errorf("rewrites that 30 commits tried: got %d, want 1 to 3: one, and one when the length has doubled", tries)
	}
	shut(t, s)
	testenv.NoError(t, os.RemoveAll(path+".new"))
	s = open(t, path)
	left, err := s.Load(t.Context())
	testenv.NoError(t, err)
	storetest.WantClaims(t, []allocator.Claim{claim}, left.Claims)
	if _, err := s.Commit(t.Context(), []allocator.Op{{Claim: claim}}); err != nil {
		t.Fatal(err)
	}
	if got := len(content(t, path)); got > minSlack {
		t.Errorf("length of the log of one claim, with room: got %d bytes, want at most %d", got, minSlack)
	}
}

// TestCrashWhileRewriting has the unfinished new log that a crash leaves. The store must
// ignore it and read the old log.
func TestCrashWhileRewriting(t *testing.T) {
	t.Parallel()
	s, path := newFile(t)
	op := allocator.Op{Claim: claims(1, 0, "me")[0].Claim}
	versions, err := s.Commit(t.Context(), []allocator.Op{op})
	testenv.NoError(t, err)
	shut(t, s)
	half := content(t, path)
	testenv.NoError(t, os.WriteFile(path+".new", half[:len(half)/2], 0o600))
	s = open(t, path)
	op.Claim.Version = versions[0]
	state, err := s.Load(t.Context())
	testenv.NoError(t, err)
	storetest.WantClaims(t, []allocator.Claim{op.Claim}, state.Claims)
	before := s.log.head
	op.Claim.Owner = allocator.Owner(strings.Repeat("x", minSlack/2))
	for range 5 {
		if versions, err = s.Commit(t.Context(), []allocator.Op{op}); err != nil {
			t.Fatal(err)
		}
		op.Claim.Version = versions[0]
	}
	if s.log.head == before {
		t.Error("log: got the old file, want a rewritten one")
	}
	if _, err := os.Stat(path + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s.new: got error %v, want %v", path, err, os.ErrNotExist)
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	s, path := newFile(t)
	var want []allocator.Claim
	for i, at := range []time.Time{
		{}, time.Unix(0, 0), time.Unix(-1, 1), time.Unix(1<<62, 999_999_999), time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		at = at.UTC()
		c := allocator.Claim{Key: allocator.PortKey(uint16(i + 1)), Owner: "me", Token: 1, Since: at, Expires: at}
		versions, err := s.Commit(t.Context(), []allocator.Op{{Claim: c}})
		testenv.NoError(t, err)
		c.Version = versions[0]
		want = append(want, c)
	}
	shut(t, s)
	state, err := open(t, path).Load(t.Context())
	testenv.NoError(t, err)
	storetest.WantClaims(t, want, state.Claims)
}

func TestCreateRefusesInvalidClaims(t *testing.T) {
	t.Parallel()
	port := func(n uint16, owner allocator.Owner) allocator.Claim {
		return allocator.Claim{Key: allocator.PortKey(n), Owner: owner, Token: 1}
	}
	path := filepath.Join(t.TempDir(), "map")
	s := open(t, path)
	for name, bad := range map[string]allocator.Claim{"no key": port(0, "me"), "no owner": port(2, ""), "again": port(1, "you")} {
		if err := s.Create(t.Context(), port(1, "me"), bad); !errors.Is(err, allocator.ErrInvalid) {
			t.Errorf("%s: got error %v, want %v", name, err, allocator.ErrInvalid)
		}
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("file after refused calls of Create: got error %v, want %v", err, os.ErrNotExist)
	}
	if err := s.Create(t.Context(), port(1, "me")); err != nil {
		t.Error(err)
	}
}

// TestCloseEndsWatch checks that Close ends watches with ErrClosed.
func TestCloseEndsWatch(t *testing.T) {
	t.Parallel()
	s, _ := newFile(t)
	ended, begun := make(chan error), make(chan struct{})
	go func() {
		for _, err := range s.Watch(t.Context(), 0) {
			if err == nil {
				close(begun)
				continue
			}
			ended <- err
		}
		close(ended)
	}()
	if _, err := s.Commit(t.Context(), []allocator.Op{{Claim: claims(1, 0, "me")[0].Claim}}); err != nil {
		t.Fatal(err)
	}
	<-begun
	shut(t, s)
	if err := <-ended; !errors.Is(err, ErrClosed) {
		t.Errorf("the watch ended with %v, want %v", err, ErrClosed)
	}
	storetest.WantEnd(t, s.Watch(t.Context(), 0), ErrClosed) // a later one, too
	if _, err := s.Load(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("Load: got error %v, want %v", err, ErrClosed)
	}
}

// TestTooMuchAtOnce checks that a commit that is too long for a frame is refused.
func TestTooMuchAtOnce(t *testing.T) {
	t.Parallel()
	s, _ := newFile(t)
	long := allocator.Owner(strings.Repeat("x", 1<<20))
	var ops []allocator.Op
	for i := range maxFrame>>20 + 1 {
		ops = append(ops, allocator.Op{Claim: allocator.Claim{Key: allocator.PortKey(uint16(i + 1)), Owner: long, Token: 1}})
	}
	_, err := s.Commit(t.Context(), ops)
	if !errors.Is(err, allocator.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprint(maxFrame)) {
		t.Errorf("got error %v, want one that names the limit of %d bytes", err, maxFrame)
	}
	if _, err := s.Commit(t.Context(), ops[:1]); err != nil {
		t.Errorf("a commit that is short enough: %v", err)
	}
}
