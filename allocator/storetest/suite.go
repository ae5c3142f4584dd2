package storetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// patience bounds waiting for events that are due at once.
const patience = time.Minute

// Ports is the test for stores that can hold ports.
const Ports = "ports are read as written"

// Run checks stores against the contract, except for the tests named in without. It calls
// open for an empty store in each test.
func Run(t *testing.T, open func(t *testing.T) allocator.Store, without ...string) {
	for name, test := range map[string]func(*testing.T, allocator.Store){
		"a key has one claim":           testPreconditions,
		"all or nothing":                testAllOrNothing,
		"claims are read as written":    testRoundTrip,
		Ports:                           testPorts,
		"versions rise":                 testVersions,
		"one of many succeeds":          testRace,
		"watchers see every change":     testWatch,
		"a watch ends with its context": testWatchEnds,
		"an ended context writes none":  testCancelled,
		"invalid changes are refused":   testInvalid,
		"reservations end by any clock": testClocks,
	} {
		if !slices.Contains(without, name) {
			t.Run(name, func(t *testing.T) { test(t, open(t)) })
		}
	}
}

// Key returns one of many keys. The suite does not use the network address, Key(0).
func Key(i int) allocator.Key {
	return allocator.AddrKey(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}))
}

func claim(i int, owner allocator.Owner, version allocator.Version) allocator.Claim {
	since := time.Date(2024, 2, 29, 12, 0, 0, 5, time.UTC)
	return allocator.Claim{
		Key: Key(i), Owner: owner, Token: uint64(1000 + i), Version: version,
		Since: since, Expires: since.Add(time.Minute),
	}
}

func put(claims ...allocator.Claim) []allocator.Op {
	var ops []allocator.Op
	for _, c := range claims {
		ops = append(ops, allocator.Op{Claim: c})
	}
	return ops
}

func mustCommit(t *testing.T, s allocator.Store, ops ...allocator.Op) []allocator.Version {
	t.Helper()
	versions, err := s.Commit(t.Context(), ops)
	if err != nil {
		t.Fatalf("Commit(%v): %v", ops, err)
	}
	if len(versions) != len(ops) {
		t.Fatalf("versions of a Commit of %d changes: got %d", len(ops), len(versions))
	}
	return versions
}

func mustGet(t *testing.T, s allocator.Store, i int) allocator.Claim {
	t.Helper()
	state, err := s.Get(t.Context(), Key(i))
	if err != nil || len(state.Claims) > 1 {
		t.Fatalf("Get(%v): got %v, error %v", Key(i), state.Claims, err)
	}
	if len(state.Claims) == 0 {
		return allocator.Claim{}
	}
	if c := state.Claims[0]; state.Version != 0 && state.Version < c.Version {
		t.Errorf("version of the state: got %d, want at least %d, the version of a claim", state.Version, c.Version)
	}
	return state.Claims[0]
}

func wantConflict(t *testing.T, s allocator.Store, current allocator.Claim, ops ...allocator.Op) {
	t.Helper()
	_, err := s.Commit(t.Context(), ops)
	conflict, ok := errors.AsType[*allocator.ConflictError](err)
	if !ok {
		t.Fatalf("Commit(%v): got error %v, want a conflict", ops, err)
	}
	if conflict.Current != current {
		t.Errorf("claim of the conflict: got %+v, want %+v", conflict.Current, current)
	}
}

func testPreconditions(t *testing.T, s allocator.Store) {
	mine := claim(1, "me", 0)
	mine.Version = mustCommit(t, s, put(mine)...)[0]
	wantConflict(t, s, mine, put(claim(1, "you", 0))...)
	wantConflict(t, s, mine, put(claim(1, "you", mine.Version+1))...)
	wantConflict(t, s, mine, allocator.Op{Claim: claim(1, "me", mine.Version+1), Delete: true})
	wantConflict(t, s, allocator.Claim{}, put(claim(2, "you", mine.Version))...)

	bound := mine
	bound.Expires = time.Time{}
	bound.Version = mustCommit(t, s, put(bound)...)[0]
	if got := mustGet(t, s, 1); got != bound {
		t.Errorf("got %+v, want %+v", got, bound)
	}
	wantConflict(t, s, bound, allocator.Op{Claim: mine, Delete: true})
	mustCommit(t, s, allocator.Op{Claim: bound, Delete: true})
	wantConflict(t, s, allocator.Claim{}, allocator.Op{Claim: bound, Delete: true})
	mustCommit(t, s, put(claim(1, "you", 0))...)
}

func testAllOrNothing(t *testing.T, s allocator.Store) {
	held := claim(1, "me", 0)
	held.Version = mustCommit(t, s, put(held)...)[0]
	wantConflict(t, s, held, put(claim(2, "you", 0), claim(1, "you", 0), claim(3, "you", 0))...)
	state, err := s.Load(t.Context())
	testenv.NoError(t, err)
	if len(state.Claims) != 1 || state.Claims[0] != held {
		t.Errorf("after a failed change of three: got %v, want only %v", state.Claims, held)
	}
	mustCommit(t, s, put(claim(2, "you", 0), claim(3, "you", 0), claim(4, "you", 0))...)
	if state, err = s.Load(t.Context()); err != nil || len(state.Claims) != 4 {
		t.Errorf("after a change of three more: got %v, error %v", state.Claims, err)
	}
}

func testRoundTrip(t *testing.T, s allocator.Store) {
	six := claim(1, "namespace/name with \x00 and é", 0)
	six.Key = allocator.AddrKey(netip.MustParseAddr("fd00::10"))
	six.Token = ^uint64(0)
	bound := claim(2, "bound", 0)
	bound.Expires = time.Time{}
	wantBack(t, s, six, bound, claim(3, "four", 0))
}

func testPorts(t *testing.T, s allocator.Store) {
	port := claim(2, "port", 0)
	port.Key = allocator.PortKey(30000)
	wantBack(t, s, port, claim(3, "four", 0))
}

// wantBack writes claims in one change, and reads them.
func wantBack(t *testing.T, s allocator.Store, want ...allocator.Claim) {
	t.Helper()
	keys := []allocator.Key{Key(4)}
	for i, v := range mustCommit(t, s, put(want...)...) {
		want[i].Version = v
		keys = append(keys, want[i].Key)
	}
	got, err := s.Get(t.Context(), keys...)
	testenv.NoError(t, err)
	WantClaims(t, want, got.Claims)
}

func testVersions(t *testing.T, s allocator.Store) {
	last := allocator.Version(0)
	for i := range 20 {
		v := mustCommit(t, s, put(claim(i+1, "me", 0))...)[0]
		if v <= last {
			t.Fatalf("version of a later change: got %d, want more than %d", v, last)
		}
		last = v
	}
	state, err := s.Load(t.Context())
	if err != nil || state.Version != 0 && state.Version < last {
		t.Errorf("version of Load: got %d, error %v, want at least %d, or 0 for none", state.Version, err, last)
	}
}

func testRace(t *testing.T, s allocator.Store) {
	const keys, rivals = 30, 8
	var mu sync.Mutex
	var owners [keys][]allocator.Owner // whom each rival takes for the owner
	var wg sync.WaitGroup
	for r := range rivals {
		wg.Go(func() {
			for i := range keys {
				owner := allocator.Owner(fmt.Sprint(r))
				_, err := s.Commit(t.Context(), put(claim(i+1, owner, 0)))
				conflict, isConflict := errors.AsType[*allocator.ConflictError](err)
				if isConflict {
					owner = conflict.Current.Owner
				} else if err != nil {
					t.Errorf("key %d: %v", i, err)
				}
				mu.Lock()
				owners[i] = append(owners[i], owner)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for i, all := range owners {
		if slices.Sort(all); all[0] == "" || all[0] != all[rivals-1] {
			t.Errorf("owners of key %d: got %q by the results of its rivals, want one for all", i, all)
		}
	}
}

func testWatch(t *testing.T, s allocator.Store) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	a := claim(1, "a", 0)
	a.Version = mustCommit(t, s, put(a)...)[0]
	b := claim(2, "b", 0)
	b.Version = mustCommit(t, s, put(b)...)[0]
	var got []string
	for e, err := range s.Watch(ctx, a.Version) {
		if err != nil {
			t.Fatalf("after %v: %v", got, err)
		}
		got = append(got, fmt.Sprintf("%v deleted=%t", e.Claim.Key, e.Deleted))
		switch len(got) {
		case 1: // The watch yields later changes, too.
			if e.Claim != b {
				t.Errorf("got %+v, want %+v", e.Claim, b)
			}
			mustCommit(t, s, allocator.Op{Claim: a, Delete: true})
		case 2:
			mustCommit(t, s, put(claim(1, "c", 0))...)
		}
		if len(got) == 3 {
			break
		}
	}
	want := []string{"10.96.0.2 deleted=false", "10.96.0.1 deleted=true", "10.96.0.1 deleted=false"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func testWatchEnds(t *testing.T, s allocator.Store) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	time.AfterFunc(time.Millisecond, cancel)
	var last error
	for _, err := range s.Watch(ctx, 0) {
		last = err
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("the watch ended with %v, want %v", last, context.Canceled)
	}
}

func testCancelled(t *testing.T, s allocator.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Commit(ctx, put(claim(1, "me", 0))); !errors.Is(err, context.Canceled) {
		t.Errorf("Commit: got error %v, want %v", err, context.Canceled)
	}
	if _, err := s.Load(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Load: got error %v, want %v", err, context.Canceled)
	}
	if _, err := s.Get(ctx, Key(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("Get: got error %v, want %v", err, context.Canceled)
	}
	if got := mustGet(t, s, 1); got != (allocator.Claim{}) {
		t.Errorf("claim after a Commit with an ended context: got %v, want none", got)
	}
}

func testInvalid(t *testing.T, s allocator.Store) {
	twice := put(claim(1, "a", 0), claim(1, "b", 0))
	for name, ops := range map[string][]allocator.Op{
		"twice the same key": twice,
		"no key":             {{Claim: allocator.Claim{Owner: "me"}}},
		"no owner":           put(claim(1, "", 0)),
		"delete nothing":     {{Claim: claim(1, "me", 0), Delete: true}},
	} {
		if _, err := s.Commit(t.Context(), ops); !errors.Is(err, allocator.ErrInvalid) {
			t.Errorf("%s: got error %v, want %v", name, err, allocator.ErrInvalid)
		}
	}
}
