package kubestore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	networkingclient "k8s.io/client-go/kubernetes/typed/networking/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/kubestore"
	"github.com/vipkit/vipkit/internal/storetest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// reserved gives a reservation that a store has.
func reserved(t *testing.T, s *kubestore.Store) allocator.Claim {
	t.Helper()
	c := allocator.Claim{Key: storetest.Key(1), Owner: "me", Token: 1, Expires: time.Now().UTC()}
	versions, err := s.Commit(t.Context(), []allocator.Op{{Claim: c}})
	if err != nil {
		t.Fatal(err)
	}
	c.Version = versions[0]
	return c
}

// TestLostAnswers loses the answer of one request, and looks whether the store finds
// out what has become of it.
func TestLostAnswers(t *testing.T) {
	for verb, change := range map[string]func(c allocator.Claim) allocator.Op{
		"create": func(allocator.Claim) allocator.Op {
			return allocator.Op{Claim: allocator.Claim{Key: storetest.Key(2), Owner: "me", Token: 7}}
		},
		"update": func(c allocator.Claim) allocator.Op { c.Expires = time.Time{}; return allocator.Op{Claim: c} },
		"delete": func(c allocator.Claim) allocator.Op { return allocator.Op{Claim: c, Delete: true} },
	} {
		for name, lost := range map[string][2]bool{"request": {true, false}, "answer": {false, true}} {
			t.Run(verb+"/"+name, func(t *testing.T) {
				a, s := newStore(t)
				c := reserved(t, s)
				a.lose = func(v string) (bool, bool) { return v == verb && lost[0], v == verb && lost[1] }
				_, err := s.Commit(t.Context(), []allocator.Op{change(c)})
				if lost[0] && !errors.Is(err, errLost) || lost[1] && err != nil {
					t.Errorf("got error %v", err)
				}
				if errors.Is(err, allocator.ErrConflict) {
					t.Errorf("%v is no conflict", err)
				}
			})
		}
	}
}

// TestRepeatedCreate has a request that comes twice: the second answer counts.
func TestRepeatedCreate(t *testing.T) {
	_, s := newStore(t)
	op := allocator.Op{Claim: allocator.Claim{Key: storetest.Key(1), Owner: "me", Token: 7}}
	first, err1 := s.Commit(t.Context(), []allocator.Op{op})
	second, err2 := s.Commit(t.Context(), []allocator.Op{op})
	if err := errors.Join(err1, err2); err != nil || first[0] != second[0] {
		t.Errorf("got versions %v and %v, error %v, want the same one twice", first, second, err)
	}
}

// TestOthersInBetween lets somebody else be faster between the look at an object and the
// change of it.
func TestOthersInBetween(t *testing.T) {
	for verb, change := range map[string]func(c allocator.Claim) allocator.Op{
		"update": func(c allocator.Claim) allocator.Op { c.Expires = time.Time{}; return allocator.Op{Claim: c} },
		"delete": func(c allocator.Claim) allocator.Op { return allocator.Op{Claim: c, Delete: true} },
	} {
		for _, isGone := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/gone=%t", verb, isGone), func(t *testing.T) {
				a, s := newStore(t)
				c := reserved(t, s)
				a.before = func(action clienttesting.Action) {
					if action.GetVerb() == verb {
						a.replaceByForeign(t, c.Key.String(), isGone)
					}
				}
				_, err := s.Commit(t.Context(), []allocator.Op{change(c)})
				if !errors.Is(err, allocator.ErrConflict) {
					t.Errorf("got error %v, want %v", err, allocator.ErrConflict)
				}
				if o := a.addresses()[c.Key.String()]; (o == nil) != isGone || o != nil && o.Spec.ParentRef.Name != "web" {
					t.Errorf("what somebody else has made became %v", o)
				}
			})
		}
	}
}

// replaceByForeign takes an object away, and may put another one in its place.
func (a *api) replaceByForeign(t *testing.T, name string, isGone bool) {
	a.removeSilently("ipaddresses", name)
	if !isGone {
		a.put(t, "ipaddresses", foreign(name, "web"))
	}
}

// TestUndo fails the last of four changes, and wants the first three back.
func TestUndo(t *testing.T) {
	a, s := newStore(t)
	held := []allocator.Claim{}
	for i := range 3 {
		held = append(held, allocator.Claim{Key: storetest.Key(i), Owner: allocator.Owner(fmt.Sprintf("services/test/%d", i)), Token: 1, Expires: time.Now().UTC()})
		versions, err := s.Commit(t.Context(), []allocator.Op{{Claim: held[i]}})
		if err != nil {
			t.Fatal(err)
		}
		held[i].Version = versions[0]
	}
	before := describe(a.addresses())
	bound, taken := held[0], held[1]
	bound.Expires, taken.Owner = time.Time{}, "me"
	ops := []allocator.Op{
		{Claim: bound}, {Claim: taken}, {Claim: held[2], Delete: true},
		{Claim: allocator.Claim{Key: storetest.Key(3), Owner: "me", Token: 1}},
		{Claim: allocator.Claim{Key: storetest.Key(4), Owner: "me", Token: 1, Version: 1}},
	}
	if _, err := s.Commit(t.Context(), ops); !errors.Is(err, allocator.ErrConflict) {
		t.Errorf("got error %v, want %v", err, allocator.ErrConflict)
	}
	if diff := cmp.Diff(before, describe(a.addresses())); diff != "" {
		t.Errorf("after a failure (-want +got):\n%s", diff)
	}
}

// TestUndoFails loses every deletion, so that what was written stays. The second change is in
// conflict only when the first one is under way: otherwise there may be nothing to undo.
func TestUndoFails(t *testing.T) {
	a, s := newStore(t)
	first, second := storetest.Key(1), storetest.Key(2)
	a.put(t, "ipaddresses", foreign(second.String(), "web"))
	a.failSecond(first, second, func(n int) (request, answer bool) { return n > 1, false })
	_, err := s.Commit(t.Context(), []allocator.Op{
		{Claim: allocator.Claim{Key: first, Owner: "me", Token: 1}},
		{Claim: allocator.Claim{Key: second, Owner: "me", Token: 1}},
	})
	if !errors.Is(err, allocator.ErrUnknown) || errors.Is(err, allocator.ErrConflict) {
		t.Errorf("got error %v, want %v and no conflict", err, allocator.ErrUnknown)
	}
	if left := a.addresses()[first.String()]; left == nil {
		t.Error("what could not be undone is gone; the test shows nothing")
	}
}

// TestTakeFails deletes what an owner has lost, cannot make it anew for the next, and
// puts it back.
func TestTakeFails(t *testing.T) {
	a, s := newStore(t)
	c := allocator.Claim{Key: storetest.Key(1), Owner: "old", Token: 1}
	versions, err := s.Commit(t.Context(), []allocator.Op{{Claim: c}})
	if err != nil {
		t.Fatal(err)
	}
	before := describe(a.addresses())
	isFirst := true
	a.lose = func(verb string) (bool, bool) {
		loses := verb == "create" && isFirst
		isFirst = isFirst && !loses
		return loses, false
	}
	c.Owner, c.Version = "new", versions[0]
	if _, err := s.Commit(t.Context(), []allocator.Op{{Claim: c}}); !errors.Is(err, errLost) {
		t.Errorf("got error %v, want %v", err, errLost)
	}
	if diff := cmp.Diff(before, describe(a.addresses())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// live is the life of one owner, whose every step may be the last.
func live(ctx context.Context, p *allocator.Pool, owner allocator.Owner, owners *storetest.Owners) {
	claims, err := p.Reserve(ctx, owner, allocator.Request{Kind: allocator.IPv4}, allocator.Request{Kind: allocator.IPv6})
	if err != nil {
		return
	}
	time.Sleep(time.Second) // virtual, as all time here
	bound, err := p.Bind(ctx, claims...)
	if err != nil {
		return
	}
	owners.Bound(bound)
	time.Sleep(time.Minute)
	owners.Released(bound)
	_ = p.Release(ctx, bound...) // Where it fails, the keys stay taken.
}

// TestWorld lets pools, and somebody who makes objects like the API server's own
// allocator, share an API that loses requests, answers and watches.
func TestWorld(t *testing.T) {
	rnd := testenv.Random(t)
	for _, p := range []float64{0, 0.02, 0.1} {
		t.Run(fmt.Sprint(p), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, client := newAPI()
				a.lose = faults(rnd, p)
				a.before = func(clienttesting.Action) {
					if a.random(rnd, 200) == 0 {
						a.disconnect()
					}
				}
				runWorld(t, a, client)
			})
		})
	}
}

func runWorld(t *testing.T, a *api, client networkingclient.NetworkingV1Interface) {
	const pools, workers, lives = 3, 4, 10
	owners := storetest.NewOwners(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ranges := []allocator.Config{
		{Prefix: netip.MustParsePrefix("10.96.0.0/26")}, {Prefix: netip.MustParsePrefix("fd00::/122")},
	}
	var running, living sync.WaitGroup
	for n := range pools {
		p := newPool(t, kubestore.New(client, kubestore.Options{}), allocator.PoolOptions{Ranges: ranges})
		if n%2 == 0 { // The others never hear what happens.
			running.Go(func() { _ = p.Run(ctx) }) // It ends with its context.
		}
		for worker := range workers {
			living.Go(func() {
				for life := range lives {
					live(ctx, p, allocator.Owner(fmt.Sprintf("services/test/%d-%d-%d", n, worker, life)), owners)
				}
			})
		}
	}
	living.Go(func() {
		for i := range 60 {
			time.Sleep(10 * time.Second)
			a.takeAsAPIServer(storetest.Key(1+i%62).String(), i%2 == 0)
		}
	})
	living.Wait()
	cancel()
	running.Wait()
	owners.WantBindings(20)
	theirs := 0
	for name, o := range a.addresses() {
		if o.Labels[networkingv1.LabelManagedBy] != "ipallocator.k8s.io" {
			continue
		}
		if theirs++; o.Spec.ParentRef.Name != "theirs" {
			t.Errorf("%s of the API server has owner %v", name, o.Spec.ParentRef)
		}
	}
	if theirs == 0 {
		t.Error("the API server has got no address; the test shows nothing")
	}
}

// takeAsAPIServer takes an address, or frees it again, without asking anyone.
func (a *api) takeAsAPIServer(name string, takes bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	group := networkingv1.Resource("ipaddresses")
	o := a.objects["ipaddresses"][name]
	switch {
	case takes && o == nil:
		_, _ = a.create(group, foreign(name, "theirs")) // There is none, so it succeeds.
	case !takes && o != nil && o.GetLabels()[networkingv1.LabelManagedBy] == "ipallocator.k8s.io":
		_ = a.remove(group, name, nil) // There is one, so it succeeds.
	}
}

func (a *api) random(rnd *rand.Rand, n int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return rnd.IntN(n)
}
