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
	"github.com/vipkit/vipkit/internal/storetest"
)

func claims(n int, version allocator.Version, owner string) []allocator.Event {
	all := make([]allocator.Event, n)
	for i := range all {
		all[i].Claim = allocator.Claim{Key: allocator.PortKey(uint16(i + 1)), Owner: allocator.Owner(owner), Token: uint64(i), Version: version}
	}
	return all
}

// newFile makes a store, and gives it and its path.
func newFile(t *testing.T, from ...allocator.Claim) (*Store, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "map")
	s := open(t, path)
	if err := s.Create(t.Context(), from...); err != nil {
		t.Fatal(err)
	}
	return s, path
}

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// frames counts the frames of a file, which must be sound to its end.
func frames(t *testing.T, content []byte) (n int) {
	t.Helper()
	h, err := readHead(content)
	if err != nil {
		t.Fatal(err)
	}
	for content = content[headSize:]; len(content) > 0; n++ {
		_, length := h.readFrame(content)
		if length == 0 {
			t.Fatalf("frame %d is broken", n)
		}
		content = content[length:]
	}
	return n
}

// TestManyFrames wants a log that is written anew to have as many frames as it
// needs, none much longer than the limit, and those of a commit to stay together.
func TestManyFrames(t *testing.T) {
	const limit = 200
	var first []allocator.Claim
	for _, e := range claims(50, 0, "me") {
		first = append(first, e.Claim)
	}
	s, path := newFile(t, first...)
	if got := frames(t, content(t, path)); got != 1 {
		t.Errorf("the first file has %d frames, want 1", got)
	}
	want, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.log.full = limit
	// So much at once makes the log too long.
	more := claims(20, 0, strings.Repeat("x", minSlack/10))
	var ops []allocator.Op
	for i := range more {
		more[i].Claim.Key = allocator.PortKey(uint16(1000 + i))
		ops = append(ops, allocator.Op{Claim: more[i].Claim})
	}
	versions, err := s.Commit(t.Context(), ops)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range versions {
		more[i].Claim.Version = v
		want.Claims = append(want.Claims, more[i].Claim)
	}
	if got := frames(t, content(t, path)); got < 30 {
		t.Errorf("the log was written anew in %d frames, want many", got)
	}
	before := frames(t, content(t, path))
	for i := range ops {
		ops[i].Claim.Version, ops[i].Delete = versions[i], true
	}
	if _, err := s.Commit(t.Context(), ops[1:]); err != nil {
		t.Fatal(err)
	}
	if got := frames(t, content(t, path)); got != before+1 {
		t.Errorf("one commit takes %d frames, want 1", got-before)
	}
	shut(t, s)
	got, err := open(t, path).Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want.Claims = want.Claims[:51]
	storetest.WantClaims(t, want.Claims, got.Claims)
}

// TestTornSnapshot wants that a file that was whole before it got its name is not
// taken for one that a crash has torn: what is gone from it would be free.
func TestTornSnapshot(t *testing.T) {
	var first []allocator.Claim
	for _, e := range claims(50, 0, "me") {
		first = append(first, e.Claim)
	}
	s, path := newFile(t, first...)
	shut(t, s)
	whole := content(t, path)
	for _, cut := range []int{len(whole) - 1, headSize + 5, headSize, headSize - 1, len(title), 0} {
		if err := os.WriteFile(path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path); !isCorrupt(err) {
			t.Errorf("cut at %d of %d: got error %v, want that the file is damaged", cut, len(whole), err)
		}
	}
	for at := range headSize {
		damaged := slices.Clone(whole)
		damaged[at] ^= 1
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path); !isCorrupt(err) {
			t.Errorf("a bit turned at byte %d: got error %v, want that the file is damaged", at, err)
		}
	}
}

func isCorrupt(err error) bool {
	_, ok := errors.AsType[*CorruptError](err)
	return ok
}

// TestOwnerLikeAFrame wants that an owner whose name is a frame does not make a
// torn record look like damage.
func TestOwnerLikeAFrame(t *testing.T) {
	s, path := newFile(t)
	name := string(head{}.appendFrame(nil, claims(3, 5, "somebody")))
	op := allocator.Op{Claim: allocator.Claim{Key: allocator.PortKey(9), Owner: allocator.Owner("x" + name), Token: 1}}
	if _, err := s.Commit(t.Context(), []allocator.Op{op}); err != nil {
		t.Fatal(err)
	}
	shut(t, s)
	whole := content(t, path)
	if err := os.WriteFile(path, whole[:len(whole)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	state, err := open(t, path).Load(t.Context())
	if err != nil || len(state.Claims) != 0 {
		t.Errorf("got %v, error %v, want nothing", state.Claims, err)
	}
}

// TestGarbageIsCountedAfterARestart wants a log not to grow from restart to restart.
func TestGarbageIsCountedAfterARestart(t *testing.T) {
	s, path := newFile(t)
	claim := allocator.Claim{Key: allocator.PortKey(1), Owner: allocator.Owner(strings.Repeat("x", 50_000)), Token: 1}
	for range 6 {
		for range 16 { // 800 kB
			versions, err := s.Commit(t.Context(), []allocator.Op{{Claim: claim}})
			if err != nil {
				t.Fatal(err)
			}
			claim.Version = versions[0]
		}
		shut(t, s)
		s = open(t, path)
	}
	if got, most := len(content(t, path)), minSlack+3*50_000; got > most {
		t.Errorf("the log of one claim has %d bytes, want at most %d", got, most)
	}
}

// TestNoRoomToWriteAnew wants the store to go on with its log if it cannot be
// written anew.
func TestNoRoomToWriteAnew(t *testing.T) {
	s, path := newFile(t)
	if err := os.MkdirAll(filepath.Join(path+".new", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
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
		t.Errorf("30 commits tried to write the log anew %d times, want it once and when it has doubled", tries)
	}
	shut(t, s)
	if err := os.RemoveAll(path + ".new"); err != nil {
		t.Fatal(err)
	}
	s = open(t, path)
	left, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	storetest.WantClaims(t, []allocator.Claim{claim}, left.Claims)
	if _, err := s.Commit(t.Context(), []allocator.Op{{Claim: claim}}); err != nil {
		t.Fatal(err)
	}
	if got := len(content(t, path)); got > minSlack {
		t.Errorf("with room, the log of one claim still has %d bytes", got)
	}
}

// TestCrashWhileWritingAnew leaves behind what a crash does in the middle of it: the
// old log counts, and the rest is in nobody's way.
func TestCrashWhileWritingAnew(t *testing.T) {
	s, path := newFile(t)
	op := allocator.Op{Claim: claims(1, 0, "me")[0].Claim}
	versions, err := s.Commit(t.Context(), []allocator.Op{op})
	if err != nil {
		t.Fatal(err)
	}
	shut(t, s)
	half := content(t, path)
	if err := os.WriteFile(path+".new", half[:len(half)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, path)
	op.Claim.Version = versions[0]
	state, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
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
		t.Error("the log was not written anew; the test shows nothing")
	}
	if _, err := os.Stat(path + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s.new is left, error %v", path, err)
	}
}

func TestTimes(t *testing.T) {
	s, path := newFile(t)
	var want []allocator.Claim
	for i, at := range []time.Time{
		{}, time.Unix(0, 0), time.Unix(-1, 1), time.Unix(1<<62, 999_999_999), time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		at = at.UTC()
		c := allocator.Claim{Key: allocator.PortKey(uint16(i + 1)), Owner: "me", Token: 1, Since: at, Expires: at}
		versions, err := s.Commit(t.Context(), []allocator.Op{{Claim: c}})
		if err != nil {
			t.Fatal(err)
		}
		c.Version = versions[0]
		want = append(want, c)
	}
	shut(t, s)
	state, err := open(t, path).Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	storetest.WantClaims(t, want, state.Claims)
}

func TestCreateRefusesSenselessClaims(t *testing.T) {
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
		t.Errorf("after that there is a file, error %v", err)
	}
	if err := s.Create(t.Context(), port(1, "me")); err != nil {
		t.Error(err)
	}
}

// TestCloseEndsWatch wants those who watch to hear of the end.
func TestCloseEndsWatch(t *testing.T) {
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
}

// TestTooMuchAtOnce wants a change that no frame can hold to be refused, not tried.
func TestTooMuchAtOnce(t *testing.T) {
	s, _ := newFile(t)
	long := allocator.Owner(strings.Repeat("x", 1<<20))
	var ops []allocator.Op
	for i := range maxFrame>>20 + 1 {
		ops = append(ops, allocator.Op{Claim: allocator.Claim{Key: allocator.PortKey(uint16(i + 1)), Owner: long, Token: 1}})
	}
	_, err := s.Commit(t.Context(), ops)
	if !errors.Is(err, allocator.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprint(maxFrame)) {
		t.Errorf("got error %v, want one that names the bound of %d bytes", err, maxFrame)
	}
	if _, err := s.Commit(t.Context(), ops[:1]); err != nil {
		t.Errorf("a change that is small enough: %v", err)
	}
}
