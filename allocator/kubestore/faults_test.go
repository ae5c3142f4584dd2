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

	networkingv1 "k8s.io/api/networking/v1"
	networkingclient "k8s.io/client-go/kubernetes/typed/networking/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/kubestore"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// reserved reserves a key in a store.
func reserved(t *testing.T, s *kubestore.Store) allocator.Claim {
	t.Helper()
	c := allocator.Claim{Key: storetest.Key(1), Owner: "me", Token: 1, Expires: time.Now().UTC()}
	versions, err := s.Commit(t.Context(), []allocator.Op{{Claim: c}})
	testenv.NoError(t, err)
	c.Version = versions[0]
	return c
}

// changes are the kinds of changes: of the key that reserved reserves, and "create" of another.
func changes() map[string]func(c allocator.Claim) allocator.Op {
	return map[string]func(c allocator.Claim) allocator.Op{
		"create": func(allocator.Claim) allocator.Op {
			return allocator.Op{Claim: allocator.Claim{Key: storetest.Key(2), Owner: "me", Token: 7}}
		},
		"update": func(c allocator.Claim) allocator.Op { c.Expires = time.Time{}; return allocator.Op{Claim: c} },
		"delete": func(c allocator.Claim) allocator.Op { return allocator.Op{Claim: c, Delete: true} },
		"take":   func(c allocator.Claim) allocator.Op { c.Owner = "other"; return allocator.Op{Claim: c} },
	}
}

// TestLostReplies loses one request or its reply. The store must read the outcome.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	all := changes()
	delete(all, "take") // see TestTakeFails and TestTakeWithLostReplies
	for verb, change := range all {
		for name, lost := range map[string][2]bool{"request": {true, false}, "reply": {false, true}} {
			t.Run(verb+"/"+name, func(t *testing.T) {
				a, s := newStore(t)
				c := reserved(t, s)
				a.lose = func(v string) (bool, bool) { return v == verb && lost[0], v == verb && lost[1] }
				_, err := s.Commit(t.Context(), []allocator.Op{change(c)})
				if lost[0] && !errors.Is(err, errLost) || lost[1] && err != nil {
					t.Errorf("got error %v, want %v only if the request was lost", err, errLost)
				}
				if errors.Is(err, allocator.ErrConflict) {
					t.Errorf("got error %v, want no conflict", err)
				}
			})
		}
	}
}

// TestRepeatedCreate creates one claim twice: both calls return the same version.
func TestRepeatedCreate(t *testing.T) {
	t.Parallel()
	_, s := newStore(t)
	op := allocator.Op{Claim: allocator.Claim{Key: storetest.Key(1), Owner: "me", Token: 7}}
	first, err1 := s.Commit(t.Context(), []allocator.Op{op})
	second, err2 := s.Commit(t.Context(), []allocator.Op{op})
	if err := errors.Join(err1, err2); err != nil || first[0] != second[0] {
		t.Errorf("got versions %v and %v, error %v, want the same one twice", first, second, err)
	}
}

// replaceByForeign removes an object, and unless isGone creates a foreign one of the same
// name.
func (a *api) replaceByForeign(t *testing.T, name string, isGone bool) {
	a.removeSilently("ipaddresses", name)
	if !isGone {
		a.put(t, "ipaddresses", foreign(name, "web"))
	}
}

// TestTakeFails loses the request that creates an object for its new owner, after the old
// one was deleted. The store must create the old one again.
func TestTakeFails(t *testing.T) {
	t.Parallel()
	a, s := newStore(t)
	c := allocator.Claim{Key: storetest.Key(1), Owner: "old", Token: 1}
	versions, err := s.Commit(t.Context(), []allocator.Op{{Claim: c}})
	testenv.NoError(t, err)
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
	testenv.Same(t, before, describe(a.addresses()), "objects")
}

// live reserves, binds and releases the keys of one owner. It ends at the first error.
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
	_ = p.Release(ctx, bound...) // If it fails, the keys stay allocated.
}

// TestFaults has pools, and a program that creates objects like the API server's own
// allocator, that share an API server which loses requests, replies and watches.
func TestFaults(t *testing.T) {
	t.Parallel()
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
				runOwners(t, a, client)
			})
		})
	}
}

func runOwners(t *testing.T, a *api, client networkingclient.NetworkingV1Interface) {
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
		if n%2 == 0 { // The other pools do not watch.
			running.Go(func() { p.Run(ctx) })
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
			t.Errorf("owner of %s of the API server: got %v, want theirs", name, o.Spec.ParentRef)
		}
	}
	if theirs == 0 {
		t.Error("addresses of the API server: got none, want some")
	}
}

// takeAsAPIServer creates or deletes an object as the API server's own allocator does.
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

// TestUndoAfterCancel checks that a commit whose context has ended still undoes its changes.
func TestUndoAfterCancel(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a, s := newStore(t)
	first, last := storetest.Key(1), storetest.Key(2)
	a.failSecond(first, last, func(int) (request, reply bool) { return false, false })
	await := a.wait
	a.wait = func(name string) {
		if await(name); name == last.String() {
			cancel()
		}
	}
	_, err := s.Commit(ctx, []allocator.Op{
		{Claim: allocator.Claim{Key: first, Owner: "me", Token: 1}}, {Claim: allocator.Claim{Key: last, Owner: "me", Token: 1}},
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
	if left := a.addresses(); len(left) != 0 {
		t.Errorf("objects: got %v, want none", left)
	}
}

// TestStopsAfterAFailure checks that a commit starts no more writes after one has failed.
func TestStopsAfterAFailure(t *testing.T) {
	t.Parallel()
	const atOnce = 8
	a, s := newStore(t)
	var ops []allocator.Op
	for i := range 10 * atOnce {
		a.put(t, "ipaddresses", foreign(storetest.Key(i).String(), "web"))
		ops = append(ops, allocator.Op{Claim: allocator.Claim{Key: storetest.Key(i), Owner: "me", Token: 1}})
	}
	var mu sync.Mutex
	created := 0
	a.before = func(action clienttesting.Action) {
		mu.Lock()
		defer mu.Unlock()
		if action.GetVerb() == "create" {
			created++
		}
	}
	if _, err := s.Commit(t.Context(), ops); !errors.Is(err, allocator.ErrConflict) {
		t.Errorf("got error %v, want %v", err, allocator.ErrConflict)
	}
	if created < 1 || created > atOnce {
		t.Errorf("create requests: got %d, want 1 to %d, the number in flight", created, atOnce)
	}
}
