package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/etcdstore"
	"github.com/vipkit/vipkit/allocator/repair"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// testCreate has a repair that sets the store up with more uses than one transaction, or one
// page, can hold.
func testCreate(t *testing.T, client *clientv3.Client) {
	const inUse = 1200
	s := etcdstore.New(client, prefix)
	list := func(context.Context) ([]repair.Use, error) {
		var uses []repair.Use
		for i := range inUse {
			uses = append(uses, repair.Use{Owner: allocator.Owner(fmt.Sprintf("services/default/%d", i)), Text: storetest.Key(i + 1).String()})
		}
		return uses, nil
	}
	for pass := range 2 {
		findings, err := repair.Reconcile(t.Context(), s, list, repair.Options{Ranges: ranges()})
		if want := inUse * (1 - pass); err != nil || len(findings) != want {
			t.Errorf("pass %d: got %d findings, error %v, want %d", pass, len(findings), err, want)
		}
	}
	state, err := s.Load(t.Context())
	if err != nil || len(state.Claims) != inUse {
		t.Fatalf("got %d claims, error %v, want %d", len(state.Claims), err, inUse)
	}
	for _, c := range state.Claims {
		if !strings.HasPrefix(string(c.Owner), "services/default/") {
			t.Errorf("owner of %v: got %q, want a Service", c.Key, c.Owner)
		}
	}
}

// testCreateAgain checks that Create keeps the claims of a Create that was interrupted, and changes
// nothing in a store that was set up.
func testCreateAgain(t *testing.T, client *clientv3.Client) {
	s := etcdstore.New(client, prefix)
	claim := func(i int, owner allocator.Owner) allocator.Claim {
		return allocator.Claim{Key: storetest.Key(i), Owner: owner, Token: 1}
	}
	testenv.NoError(t, s.Create(t.Context(), claim(1, "first")))
	if _, err := client.Delete(t.Context(), prefix+"/created"); err != nil {
		t.Fatal(err)
	}
	testenv.NoError(t, s.Create(t.Context(), claim(1, "second"), claim(2, "second")))
	testenv.NoError(t, s.Create(t.Context(), claim(3, "late")))
	state, err := s.Load(t.Context())
	testenv.NoError(t, err)
	want := map[string]string{storetest.Key(1).String(): "first", storetest.Key(2).String(): "second"}
	testenv.Same(t, want, ownersOf(state), "owners")
}

// testParts makes changes that are too large for one transaction.
func testParts(t *testing.T, client *clientv3.Client) {
	s := newStore(t, client)
	p := newPool(t, s)
	claims, err := p.Reserve(t.Context(), "me", allocator.Request{Kind: allocator.IPv4, Count: 250})
	if err == nil {
		claims, err = p.Bind(t.Context(), claims...)
	}
	if got := len(stored(t, client)); err != nil || got != 250 {
		t.Fatalf("got %d addresses, error %v, want 250", got, err)
	}
	before, err := s.Load(t.Context())
	testenv.NoError(t, err)
	// The first parts have changes of each kind, and the last part fails.
	var ops []allocator.Op
	for i, c := range claims[:200] {
		if i%2 == 0 {
			c.Owner = "you"
		}
		ops = append(ops, allocator.Op{Claim: c, Delete: i%2 == 1})
	}
	ops = append(ops, put(1, 0)...)
	ops = slices.Insert(ops, 0, put(2, 0)...)
	ops = append(ops, put(3, 77)...)
	if _, err := s.Commit(t.Context(), ops); !errors.Is(err, allocator.ErrConflict) {
		t.Errorf("got error %v, want %v", err, allocator.ErrConflict)
	}
	after, err := s.Load(t.Context())
	testenv.NoError(t, err)
	testenv.Same(t, withoutVersions(before.Claims), withoutVersions(after.Claims), "claims after a failure")
	now := map[allocator.Key]allocator.Version{}
	for _, c := range after.Claims {
		now[c.Key] = c.Version
	}
	for i := range claims {
		claims[i].Version = now[claims[i].Key]
	}
	if err := p.Release(t.Context(), claims...); err != nil || len(stored(t, client)) != 0 {
		t.Errorf("Release: error %v, taken addresses: got %d, want none", err, len(stored(t, client)))
	}
}

func withoutVersions(claims []allocator.Claim) []string {
	var lines []string
	for _, c := range claims {
		lines = append(lines, fmt.Sprint(c.Key, c.Owner, c.Token, c.Since, c.Expires))
	}
	slices.Sort(lines)
	return lines
}

// testManyPortsAtOnce has several processes that allocate many ports, in parts, and few.
func testManyPortsAtOnce(t *testing.T, client *clientv3.Client) {
	const each = 150
	s := newStore(t, client)
	var wg sync.WaitGroup
	want := map[allocator.Owner]int{}
	for n := range 4 {
		p := newPool(t, etcdstore.New(client, prefix))
		owner := allocator.Owner(fmt.Sprint("services/default/", n))
		want[owner] = 2*each + 3
		for _, count := range []int{1, each, 2, each} {
			wg.Go(func() {
				claims, err := p.Reserve(t.Context(), owner, allocator.Request{Kind: allocator.Port, Count: count})
				if err == nil {
					_, err = p.Bind(t.Context(), claims...)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	state, err := s.Load(t.Context())
	testenv.NoError(t, err)
	owned := map[allocator.Owner]int{}
	for _, c := range state.Claims {
		if c.IsBound() {
			owned[c.Owner]++
		}
	}
	if diff := cmp.Diff(want, owned); diff != "" || len(state.Claims) != 4*(2*each+3) {
		t.Errorf("bound ones of %d claims, by owner (-want +got):\n%s", len(state.Claims), diff)
	}
}
