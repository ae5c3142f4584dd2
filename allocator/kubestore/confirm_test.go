package kubestore_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clienttesting "k8s.io/client-go/testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/kubestore"
	"github.com/vipkit/vipkit/allocator/storetest"
)

// wantLost checks that an error says that a response was lost. It must not be a conflict,
// as callers rely on that: after a conflict nothing was written.
func wantLost(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, errLost) || errors.Is(err, allocator.ErrConflict) {
		t.Errorf("%s: got error %v, want %v and no conflict", what, err, errLost)
	}
}

// loseAll loses every request with one of the verbs.
func (a *api) loseAll(verbs ...string) {
	a.lose = func(verb string) (bool, bool) { return strings.Contains(strings.Join(verbs, " "), verb), false }
}

// TestUnreadableOutcome has writes whose requests are lost, and whose objects cannot be
// read afterwards.
func TestUnreadableOutcome(t *testing.T) {
	t.Parallel()
	for verb, change := range changes() {
		a, s := newStore(t)
		c := reserved(t, s)
		if a.loseAll(verb, "get"); verb == "take" {
			a.loseAll("delete", "get")
		}
		_, err := s.Commit(t.Context(), []allocator.Op{change(c)})
		wantLost(t, verb, err)
		if o := a.addresses()[c.Key.String()]; o == nil || o.Spec.ParentRef.Name != "me" {
			t.Errorf("%s: object: got %v, want it unchanged", verb, o)
		}
	}
}

// TestLostReadAfterAConflict loses the read that follows the response "already exists",
// which does not name the owner.
func TestLostReadAfterAConflict(t *testing.T) {
	t.Parallel()
	a, s := newStore(t)
	a.put(t, "ipaddresses", foreign(storetest.Key(1).String(), "web"))
	a.loseAll("get")
	_, err := s.Commit(t.Context(), []allocator.Op{{Claim: allocator.Claim{Key: storetest.Key(1), Owner: "me", Token: 1}}})
	if wantLost(t, "create", err); !apierrors.IsAlreadyExists(err) {
		t.Errorf("got error %v, want it to wrap that of the API server", err)
	}
}

// TestLostReads checks that reads return the error of a lost request.
func TestLostReads(t *testing.T) {
	t.Parallel()
	a, s := newStore(t)
	c := reserved(t, s)
	a.loseAll("get", "list")
	_, err := s.Get(t.Context(), c.Key)
	wantLost(t, "Get", err)
	_, err = s.Load(t.Context())
	wantLost(t, "Load", err)
	_, err = s.Ranges(t.Context())
	wantLost(t, "Ranges", err)
	c.Expires = time.Time{}
	_, err = kubestore.New(a.client, kubestore.Options{}).Commit(t.Context(), []allocator.Op{{Claim: c}})
	wantLost(t, "a change of an object that another store has written", err)
	// One lost request of several is enough.
	a.loseAll()
	reads := 0
	a.lose = func(string) (bool, bool) { reads++; return reads == 1, false }
	_, err = s.Get(t.Context(), c.Key, storetest.Key(2))
	wantLost(t, "Get of two", err)
}

// TestTakeWithLostReplies loses a reply while the store deletes an object and creates it
// for another owner. The change must succeed.
func TestTakeWithLostReplies(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"create", "delete"} {
		a, s := newStore(t)
		c := reserved(t, s)
		a.lose = func(v string) (bool, bool) { return false, v == verb }
		c.Owner = "other"
		versions, err := s.Commit(t.Context(), []allocator.Op{{Claim: c}})
		if err != nil {
			t.Fatalf("%s: %v", verb, err)
		}
		if o := a.addresses()[c.Key.String()]; o.Spec.ParentRef.Name != "other" || o.ResourceVersion != fmt.Sprint(versions[0]) {
			t.Errorf("%s: owner and version: got %s and %s, want other and %d", verb, o.Spec.ParentRef.Name, o.ResourceVersion, versions[0])
		}
	}
}

// TestTakenInBetween has another program that creates the object between the deletion and
// the creation.
func TestTakenInBetween(t *testing.T) {
	t.Parallel()
	a, s := newStore(t)
	c := reserved(t, s)
	a.before = func(action clienttesting.Action) {
		if action.GetVerb() == "create" {
			a.put(t, "ipaddresses", foreign(c.Key.String(), "web"))
		}
	}
	c.Owner = "other"
	if _, err := s.Commit(t.Context(), []allocator.Op{{Claim: c}}); !errors.Is(err, allocator.ErrConflict) || errors.Is(err, allocator.ErrUnknown) {
		t.Errorf("got error %v, want %v", err, allocator.ErrConflict)
	}
	if o := a.addresses()[c.Key.String()]; o == nil || o.Spec.ParentRef.Name != "web" {
		t.Errorf("object of another program: got %v, want it unchanged", o)
	}
}

// TestConflictsNameTheOwner checks that a conflict names the address and its claim.
func TestConflictsNameTheOwner(t *testing.T) {
	t.Parallel()
	key := storetest.Key(1)
	all := changes()
	all["create"] = func(allocator.Claim) allocator.Op {
		return allocator.Op{Claim: allocator.Claim{Key: key, Owner: "me", Token: 7}}
	}
	for what, change := range all {
		for i := range 4 {
			knows, isGone := i&1 != 0, i&2 != 0 // whether the store itself has written the object, and it is deleted since
			a, s := newStore(t)
			c := reserved(t, s)
			if a.replaceByForeign(t, key.String(), isGone); what == "create" && isGone {
				continue
			}
			if !knows {
				s = kubestore.New(a.client, kubestore.Options{})
			}
			state, err1 := s.Get(t.Context(), key)
			_, err2 := s.Commit(t.Context(), []allocator.Op{change(c)})
			conflict, ok := errors.AsType[*allocator.ConflictError](err2)
			if err1 != nil || !ok {
				t.Fatalf("%s: got errors %v and %v, want a conflict", what, err1, err2)
			}
			state.Claims = append(state.Claims, allocator.Claim{})
			if conflict.Key != key || conflict.Current != state.Claims[0] {
				t.Errorf("%s: conflict: got %v and %+v, want %v and %+v", what, conflict.Key, conflict.Current, key, state.Claims[0])
			}
		}
	}
}

// TestVersionOfADeletion checks that it is the version of the deleted object.
func TestVersionOfADeletion(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		a, s := newStore(t)
		c := reserved(t, s)
		a.lose = func(verb string) (bool, bool) { return false, lost && verb == "delete" }
		versions, err := s.Commit(t.Context(), []allocator.Op{{Claim: c, Delete: true}})
		if err != nil || versions[0] != c.Version {
			t.Errorf("reply lost: %t: got versions %v, error %v, want %d", lost, versions, err, c.Version)
		}
	}
}

// TestUndoOfEachKind fails the second of two changes, once the first one has begun. The
// store must undo the first one, also if its reply is lost. If undoing fails, the outcome
// is unknown.
func TestUndoOfEachKind(t *testing.T) {
	t.Parallel()
	for what, change := range changes() {
		requests := 1
		if what == "take" {
			requests = 2 // it deletes and creates
		}
		for i := range 4 {
			isLost, fails := i&1 != 0, i&2 != 0
			t.Run(fmt.Sprintf("%s/lost=%t/undone=%t", what, isLost, !fails), func(t *testing.T) {
				a, s := newStore(t)
				held, taken := reserved(t, s), storetest.Key(9)
				a.put(t, "ipaddresses", foreign(taken.String(), "web"))
				before := a.addresses()
				op := change(held)
				a.failSecond(op.Claim.Key, taken, func(n int) (request, reply bool) { return fails && n > requests, isLost && n <= requests })
				_, err := s.Commit(t.Context(), []allocator.Op{op, {Claim: allocator.Claim{Key: taken, Owner: "me", Token: 1}}})
				if fails {
					if !errors.Is(err, allocator.ErrUnknown) || !errors.Is(err, errLost) || errors.Is(err, allocator.ErrConflict) {
						t.Errorf("got error %v, want %v, %v and no conflict", err, allocator.ErrUnknown, errLost)
					}
					return
				}
				if !errors.Is(err, allocator.ErrConflict) || errors.Is(err, allocator.ErrUnknown) {
					t.Errorf("got error %v, want %v", err, allocator.ErrConflict)
				}
				if diff := cmp.Diff(describe(before), describe(a.addresses())); diff != "" {
					t.Fatalf("objects (-want +got):\n%s", diff)
				}
				name := held.Key.String()
				if was, is := before[name].UID, a.addresses()[name].UID; what == "update" && is != was {
					t.Errorf("UID of the object: got %s, want %s", is, was)
				}
			})
		}
	}
}

// failSecond delays requests about the second of two keys until the first change of the
// first one, and calls lose with the number of each change of the first one.
func (a *api) failSecond(first, second allocator.Key, lose func(n int) (request, reply bool)) {
	begun, n := make(chan struct{}), 0
	a.wait = func(name string) {
		if name != second.String() {
			return
		}
		select {
		case <-begun:
		case <-time.After(10 * time.Second): // There was no first change.
		}
	}
	a.loseOf = func(name, verb string) (request, reply bool) {
		if name != first.String() || verb == "get" {
			return false, false
		}
		if n++; n == 1 {
			close(begun)
		}
		return lose(n)
	}
}

// TestSeveralRequestsAtOnce checks that a commit of many keys sends several requests at once:
// none is handled before as many others are in flight.
func TestSeveralRequestsAtOnce(t *testing.T) {
	t.Parallel()
	const atOnce = 8
	a, s := newStore(t)
	var mu sync.Mutex
	here, all := 0, make(chan struct{})
	a.wait = func(name string) {
		mu.Lock()
		mine := all
		if here++; here == atOnce {
			close(all)
			here, all = 0, make(chan struct{})
		}
		mu.Unlock()
		select {
		case <-mine:
		case <-time.After(time.Minute):
			t.Errorf("request about %s: got fewer than %d in flight", name, atOnce)
		}
	}
	var ops []allocator.Op
	for i := range 3 * atOnce {
		ops = append(ops, allocator.Op{Claim: allocator.Claim{Key: storetest.Key(i), Owner: "me", Token: 1}})
	}
	versions, err := s.Commit(t.Context(), ops)
	if err != nil || len(versions) != len(ops) || len(a.addresses()) != len(ops) {
		t.Errorf("got %d versions, error %v, %d objects, want %d", len(versions), err, len(a.addresses()), len(ops))
	}
}
