package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
)

// revision returns the current revision of etcd.
func revision(t *testing.T, client *clientv3.Client) int64 {
	t.Helper()
	answer, err := client.Get(t.Context(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	return answer.Header.Revision
}

// testManyPorts checks that each step of a Service with many node ports and two addresses is
// one transaction, which is one revision.
func testManyPorts(t *testing.T, client *clientv3.Client) {
	p := newPool(t, withMaps(t, client))
	for _, count := range []int{118, 119, 120, 121, 128, 129, 250, 998} {
		begin := revision(t, client)
		claims, err := p.Reserve(t.Context(), "services/default/web", allocator.Request{Kind: allocator.IPv4},
			allocator.Request{Kind: allocator.IPv6}, allocator.Request{Kind: allocator.Port, Count: count})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(stored(t, client, "30000-32767")); got != count {
			t.Errorf("taken ports: got %d, want %d", got, count)
		}
		if claims, err = p.Bind(t.Context(), claims...); err != nil {
			t.Fatal(err)
		}
		if err := p.Release(t.Context(), claims...); err != nil {
			t.Fatal(err)
		}
		if got := revision(t, client) - begin; got != 3 {
			t.Errorf("%d ports: got %d transactions, want 3", count, got)
		}
		if got := len(stored(t, client, "30000-32767")) + len(stored(t, client, "10.96.0.0/16")); got != 0 {
			t.Errorf("%d ports: taken keys at the end: got %d, want none", count, got)
		}
	}
}

// hook is an etcd client that calls a function before the transaction that writes, after
// the one that reads.
type hook struct {
	clientv3.KV
	txns   int
	before func()
}

func (h *hook) Txn(ctx context.Context) clientv3.Txn {
	if h.txns++; h.txns == 2 {
		h.before()
	}
	return h.KV.Txn(ctx)
}

// testManyPortsRaced has another process that changes one of many ports between the reading
// transaction and the writing one.
func testManyPortsRaced(t *testing.T, client *clientv3.Client) {
	const many = 250
	for name, change := range map[string]func(held, free allocator.Claim) allocator.Op{
		"takes a free one": func(_, free allocator.Claim) allocator.Op { return allocator.Op{Claim: free} },
		"changes one":      func(held, _ allocator.Claim) allocator.Op { return allocator.Op{Claim: held} },
		"frees one":        func(held, _ allocator.Claim) allocator.Op { return allocator.Op{Claim: held, Delete: true} },
	} {
		other := withMaps(t, client)
		var ops []allocator.Op
		for i := range many {
			ops = append(ops, allocator.Op{Claim: allocator.Claim{Key: allocator.PortKey(uint16(30000 + 2*i)), Owner: "me", Token: 1}})
		}
		for i, version := range mustCommit(t, other, ops[:many/2]) {
			ops[i].Claim.Version, ops[i].Delete = version, i%2 == 0
		}
		raced := connect(t, client.Endpoints()[0])
		var before allocator.State
		raced.KV = &hook{KV: raced.KV, before: func() {
			held, free := ops[7].Claim, ops[many-7].Claim
			held.Owner, free.Owner = "rival", "rival"
			mustCommit(t, other, []allocator.Op{change(held, free)})
			var err error
			if before, err = other.Load(context.Background()); err != nil {
				t.Error(err)
			}
		}}
		_, err := newStore(t, raced, ranges()...).Commit(t.Context(), ops)
		conflict, ok := errors.AsType[*allocator.ConflictError](err)
		if !ok || conflict.Key != ops[7].Claim.Key && conflict.Key != ops[many-7].Claim.Key {
			t.Errorf("%s: got error %v, want a conflict about the key that was changed", name, err)
		}
		after, err := other.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(withoutVersions(before.Claims), withoutVersions(after.Claims)); diff != "" {
			t.Errorf("%s: claims after the conflict (-want +got):\n%s", name, diff)
		}
	}
}

// testManyPortsAtOnce has several processes that allocate many ports and few, all in one row.
func testManyPortsAtOnce(t *testing.T, client *clientv3.Client) {
	const each = 150
	withMaps(t, client)
	var wg sync.WaitGroup
	for n := range 4 {
		p := newPool(t, newStore(t, client, ranges()...))
		owner := allocator.Owner(fmt.Sprint("services/default/", n))
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
	state, err := newStore(t, client, ranges()...).Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	owned := map[allocator.Owner]int{}
	for _, c := range state.Claims {
		if c.IsBound() {
			owned[c.Owner]++
		}
	}
	want := map[allocator.Owner]int{}
	for n := range 4 {
		want[allocator.Owner(fmt.Sprint("services/default/", n))] = 2*each + 3
	}
	if diff := cmp.Diff(want, owned); diff != "" || len(state.Claims) != 4*(2*each+3) {
		t.Errorf("bound ones of %d claims, by owner (-want +got):\n%s", len(state.Claims), diff)
	}
}
