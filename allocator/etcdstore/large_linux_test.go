package etcdstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/etcdstore"
	"github.com/vipkit/vipkit/allocator/rangemap"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// revision returns the current revision of etcd.
func revision(t *testing.T, client *clientv3.Client) int64 {
	t.Helper()
	answer, err := client.Get(t.Context(), prefix)
	testenv.NoError(t, err)
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
		testenv.NoError(t, err)
		testenv.Same(t, count, len(stored(t, client, "30000-32767")), "taken ports")
		if claims, err = p.Bind(t.Context(), claims...); err != nil {
			t.Fatal(err)
		}
		testenv.NoError(t, p.Release(t.Context(), claims...))
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
		testenv.NoError(t, err)
		testenv.Same(t, withoutVersions(before.Claims), withoutVersions(after.Claims), "%s: claims after the conflict", name)
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
	testenv.NoError(t, err)
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

// fullMap imports a map of a prefix of which all keys but the first are taken.
func fullMap(t *testing.T, s *etcdstore.Store, prefix string) {
	t.Helper()
	c, err := allocator.ParseConfig(prefix)
	testenv.NoError(t, err)
	r, err := allocator.NewRange(c)
	testenv.NoError(t, err)
	n := r.Size()
	data := bytes.Repeat([]byte{0xff}, int(n+7)/8)
	data[0] >>= (8 - n%8) % 8
	data[len(data)-1] &= 0xfe
	testenv.NoError(t, s.Import(t.Context(), rangemap.Map{Range: prefix, Data: data}))
}

// testLargeMaps changes several maps in one transaction that are as large as New accepts.
func testLargeMaps(t *testing.T, client *clientv3.Client) {
	configs := func(prefixes ...string) (all []allocator.Config) {
		for _, p := range prefixes {
			all = append(all, allocator.Config{Prefix: netip.MustParsePrefix(p)})
		}
		return all
	}
	for _, tooMany := range [][]allocator.Config{configs("10.0.0.0/8"), configs("10.0.0.0/9", "10.128.0.0/9"), configs("10.0.0.0/9", "11.0.0.0/11")} {
		if _, err := etcdstore.New(client, prefix, tooMany...); !errors.Is(err, allocator.ErrTooLarge) {
			t.Errorf("ranges %v: got error %v, want %v", tooMany, err, allocator.ErrTooLarge)
		}
	}
	newStore(t, client, append(configs("11.0.0.0/9"), ranges()...)...)
	s := newStore(t, client, configs("10.0.0.0/10", "11.0.0.0/10")...)
	fullMap(t, s, "10.0.0.0/10")
	fullMap(t, s, "11.0.0.0/10")
	var ops []allocator.Op
	for _, text := range []string{"10.0.0.1", "11.0.0.1"} {
		claim := allocator.Claim{Key: allocator.AddrKey(netip.MustParseAddr(text)), Owner: "me", Token: 1}
		ops = append(ops, allocator.Op{Claim: claim})
	}
	mustCommit(t, s, ops)
}

// testLongOwners allocates many ports, and an address of a large range, to an owner with the
// longest name that a claim can have.
func testLongOwners(t *testing.T, client *clientv3.Client) {
	const many = 998
	s := newStore(t, client, allocator.Config{Prefix: netip.MustParsePrefix("10.0.0.0/10")}, ranges()[2])
	fullMap(t, s, "10.0.0.0/10")
	testenv.NoError(t, s.Create(t.Context()))
	owner := allocator.Owner(strings.Repeat("x", 1100))
	ops := []allocator.Op{{Claim: allocator.Claim{Key: allocator.AddrKey(netip.MustParseAddr("10.0.0.1")), Owner: owner, Token: 1}}}
	for i := range many {
		claim := allocator.Claim{Key: allocator.PortKey(uint16(30000 + i)), Owner: owner, Token: 1}
		ops = append(ops, allocator.Op{Claim: claim})
	}
	mustCommit(t, s, ops)
	testenv.Same(t, many, len(stored(t, client, "30000-32767")), "taken ports")
}
