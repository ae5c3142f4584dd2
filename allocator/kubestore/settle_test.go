package kubestore_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clienttesting "k8s.io/client-go/testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/kubestore"
	"github.com/vipkit/vipkit/internal/storetest"
)

// wantLost wants an error that says that an answer was lost, and not that somebody else
// was faster: whoever hears that takes it for the truth.
func wantLost(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, errLost) || errors.Is(err, allocator.ErrConflict) {
		t.Errorf("%s: got error %v, want %v and no conflict", what, err, errLost)
	}
}

// loseAll has every request of some kinds get lost.
func (a *api) loseAll(verbs ...string) {
	a.lose = func(verb string) (bool, bool) { return strings.Contains(strings.Join(verbs, " "), verb), false }
}

// Where the store can neither write nor find out what became of it, it says so.
func TestLostForGood(t *testing.T) {
	free := allocator.Op{Claim: allocator.Claim{Key: storetest.Key(2), Owner: "me", Token: 7}}
	for verb, change := range map[string]func(c allocator.Claim) allocator.Op{
		"create": func(allocator.Claim) allocator.Op { return free },
		"update": func(c allocator.Claim) allocator.Op { c.Expires = time.Time{}; return allocator.Op{Claim: c} },
		"delete": func(c allocator.Claim) allocator.Op { return allocator.Op{Claim: c, Delete: true} },
		"take":   func(c allocator.Claim) allocator.Op { c.Owner = "other"; return allocator.Op{Claim: c} },
	} {
		a, s := newStore(t)
		c := reserved(t, s)
		if a.loseAll(verb, "get"); verb == "take" {
			a.loseAll("delete", "get")
		}
		_, err := s.Commit(t.Context(), []allocator.Op{change(c)})
		wantLost(t, verb, err)
		if o := a.addresses()[c.Key.String()]; o == nil || o.Spec.ParentRef.Name != "me" {
			t.Errorf("%s: the object became %v", verb, o)
		}
	}
}

// The answer that somebody has the address does not tell who.
func TestLostReadAfterAConflict(t *testing.T) {
	a, s := newStore(t)
	a.put(t, "ipaddresses", foreign(storetest.Key(1).String(), "web"))
	a.loseAll("get")
	_, err := s.Commit(t.Context(), []allocator.Op{{Claim: allocator.Claim{Key: storetest.Key(1), Owner: "me", Token: 1}}})
	if wantLost(t, "create", err); !apierrors.IsAlreadyExists(err) {
		t.Errorf("got error %v, want it to say what the API server said", err)
	}
}

// A read that is lost finds nothing out about any address.
func TestLostReads(t *testing.T) {
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
	wantLost(t, "a change of what another store has written", err)
	// Of several, one is enough.
	a.loseAll()
	reads := 0
	a.lose = func(string) (bool, bool) { reads++; return reads == 1, false }
	_, err = s.Get(t.Context(), c.Key, storetest.Key(2))
	wantLost(t, "Get of two", err)
}

// Whoever takes an address for another owner deletes it and makes it anew; that the
// answers to both get lost changes nothing.
func TestTakeWithLostAnswers(t *testing.T) {
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
			t.Errorf("%s: the address belongs to %s in version %s, want other and %d", verb, o.Spec.ParentRef.Name, o.ResourceVersion, versions[0])
		}
	}
}

// Somebody may be faster between the two.
func TestTakenInBetween(t *testing.T) {
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
		t.Errorf("what somebody else has made became %v", o)
	}
}

// A conflict names the address, and who has it.
func TestConflictsTellWhoIsThere(t *testing.T) {
	key := storetest.Key(1)
	for what, change := range map[string]func(c allocator.Claim) allocator.Op{
		"create": func(allocator.Claim) allocator.Op {
			return allocator.Op{Claim: allocator.Claim{Key: key, Owner: "me", Token: 7}}
		},
		"update": func(c allocator.Claim) allocator.Op { c.Expires = time.Time{}; return allocator.Op{Claim: c} },
		"delete": func(c allocator.Claim) allocator.Op { return allocator.Op{Claim: c, Delete: true} },
	} {
		for _, knows := range []bool{true, false} { // the store has written it itself, and expects it
			a, s := newStore(t)
			c := reserved(t, s)
			a.replaceByForeign(t, key.String(), false)
			if !knows {
				s = kubestore.New(a.client, kubestore.Options{})
			}
			state, err1 := s.Get(t.Context(), key)
			_, err2 := s.Commit(t.Context(), []allocator.Op{change(c)})
			conflict, ok := errors.AsType[*allocator.ConflictError](err2)
			if err1 != nil || !ok {
				t.Fatalf("%s: got errors %v and %v, want a conflict", what, err1, err2)
			}
			if conflict.Key != key || len(state.Claims) != 1 || conflict.Current != state.Claims[0] {
				t.Errorf("%s: got a conflict about %v with %+v, want %v and %+v", what, conflict.Key, conflict.Current, key, state.Claims)
			}
		}
	}
}

// The version of a deletion is that of what was deleted.
func TestVersionOfADeletion(t *testing.T) {
	for _, lost := range []bool{false, true} {
		a, s := newStore(t)
		c := reserved(t, s)
		a.lose = func(verb string) (bool, bool) { return false, lost && verb == "delete" }
		versions, err := s.Commit(t.Context(), []allocator.Op{{Claim: c, Delete: true}})
		if err != nil || versions[0] != c.Version {
			t.Errorf("answer lost: %t: got versions %v, error %v, want %d", lost, versions, err, c.Version)
		}
	}
}

// TestUndoOfEachKind fails the second of two changes, once the first one is under way. That is
// undone, also if it was found out by reading; where that fails, nobody knows what is
// stored.
func TestUndoOfEachKind(t *testing.T) {
	for what, c := range map[string]struct {
		requests int
		change   func(c allocator.Claim) allocator.Op
	}{
		"update": {1, func(c allocator.Claim) allocator.Op { c.Expires = time.Time{}; return allocator.Op{Claim: c} }},
		"delete": {1, func(c allocator.Claim) allocator.Op { return allocator.Op{Claim: c, Delete: true} }},
		"take":   {2, func(c allocator.Claim) allocator.Op { c.Owner = "other"; return allocator.Op{Claim: c} }},
		"create": {1, func(c allocator.Claim) allocator.Op {
			c.Key, c.Version = storetest.Key(2), 0
			return allocator.Op{Claim: c}
		}},
	} {
		for i := range 4 {
			isLost, fails := i&1 != 0, i&2 != 0
			t.Run(fmt.Sprintf("%s/lost=%t/undone=%t", what, isLost, !fails), func(t *testing.T) {
				a, s := newStore(t)
				held, taken := reserved(t, s), storetest.Key(9)
				a.put(t, "ipaddresses", foreign(taken.String(), "web"))
				before := a.addresses()
				op := c.change(held)
				a.failSecond(op.Claim.Key, taken, func(n int) (request, answer bool) { return fails && n > c.requests, isLost && n <= c.requests })
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
					t.Fatalf("what is stored (-want +got):\n%s", diff)
				}
				name := held.Key.String()
				if was, is := before[name].UID, a.addresses()[name].UID; what == "update" && is != was {
					t.Errorf("the object is another one: %s, want %s", is, was)
				}
			})
		}
	}
}

// failSecond holds up requests about the second of two keys until there is a first change
// of the first one, and loses such changes by their number.
func (a *api) failSecond(first, second allocator.Key, lose func(n int) (request, answer bool)) {
	begun, n := make(chan struct{}), 0
	a.wait = func(name string) {
		if name != second.String() {
			return
		}
		select {
		case <-begun:
		case <-time.After(10 * time.Second): // The first change does not come.
		}
	}
	a.loseOf = func(name, verb string) (request, answer bool) {
		if name != first.String() || verb == "get" {
			return false, false
		}
		if n++; n == 1 {
			close(begun)
		}
		return lose(n)
	}
}
