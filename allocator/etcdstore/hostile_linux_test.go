package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/rangemap"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const portsPath = "/test/maps/30000-32767"

// portMap returns the object of a map in which some node ports are taken.
func portMap(taken ...int) string { return string(mapOfPorts(taken...).Marshal()) }

func mapOfPorts(taken ...int) rangemap.Map {
	number := new(big.Int)
	for _, port := range taken {
		number.SetBit(number, port-30000, 1)
	}
	return rangemap.Map{Range: "30000-32767", Data: number.Bytes()}
}

// testMapWrittenByHand sets and clears bits without claims. A watch must yield these changes.
func testMapWrittenByHand(t *testing.T, client *clientv3.Client) {
	s := newStore(t, client, allocator.Config{FirstPort: 30000, LastPort: 32767})
	if _, err := client.Put(t.Context(), portsPath, portMap(30001)); err != nil {
		t.Fatal(err)
	}
	before, err := s.Load(t.Context())
	testenv.NoError(t, err)
	if _, err := client.Put(t.Context(), portsPath, portMap(30080, 32767)); err != nil {
		t.Fatal(err)
	}
	var events []string
	var last allocator.Claim
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for e, err := range s.Watch(ctx, before.Version) {
		if err != nil {
			t.Fatalf("after %v: %v", events, err)
		}
		events = append(events, fmt.Sprintf("%v %s deleted=%t", e.Claim.Key, e.Claim.Owner, e.Deleted))
		last = e.Claim
		if len(events) == 3 {
			break
		}
	}
	want := []string{"30001  deleted=true", "30080 imported deleted=false", "32767 imported deleted=false"}
	testenv.Same(t, want, events, "events")
	// The version of the last event is a valid precondition.
	last.Owner = "services/default/web"
	mustCommit(t, s, []allocator.Op{{Claim: last}})
	testenv.Same(t, []string{"30080", "32767"}, stored(t, client, "30000-32767"), "keys of the map")
}

// testCopied has a claim of the same revision as its map, as in an etcd that was copied in
// one transaction.
func testCopied(t *testing.T, client *clientv3.Client) {
	_, err := client.Txn(t.Context()).Then(
		clientv3.OpPut(portsPath, portMap(30080)),
		clientv3.OpPut("/test/claims/30080", `{"owner":"services/default/web","token":"7","since":"2024-02-29T12:00:00Z"}`),
	).Commit()
	testenv.NoError(t, err)
	s := newStore(t, client, allocator.Config{FirstPort: 30000, LastPort: 32767})
	state, err := s.Load(t.Context())
	if err != nil || len(state.Claims) != 1 {
		t.Fatalf("got %+v, error %v, want one claim", state, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := s.Commit(ctx, []allocator.Op{{Claim: state.Claims[0], Delete: true}}); err != nil {
		t.Errorf("freeing it: %v", err)
	}
	if got := stored(t, client, "30000-32767"); len(got) != 0 {
		t.Errorf("keys of the map: got %v, want none", got)
	}
}

// rival writes the map before every transaction.
type rival struct {
	clientv3.KV
	times int
}

func (r *rival) Txn(ctx context.Context) clientv3.Txn {
	return &race{Txn: r.KV.Txn(ctx), ctx: ctx, rival: r}
}

type race struct {
	clientv3.Txn
	ctx   context.Context
	rival *rival
}

func (r *race) If(c ...clientv3.Cmp) clientv3.Txn  { r.Txn = r.Txn.If(c...); return r }
func (r *race) Then(o ...clientv3.Op) clientv3.Txn { r.Txn = r.Txn.Then(o...); return r }

func (r *race) Commit() (*clientv3.TxnResponse, error) {
	r.rival.times++
	now, err := r.rival.Get(r.ctx, portsPath)
	if err == nil && len(now.Kvs) == 1 {
		_, err = r.rival.Put(r.ctx, portsPath, string(now.Kvs[0].Value))
	}
	if err != nil {
		return nil, err
	}
	return r.Txn.Commit()
}

// testAlwaysConflict checks that a commit gives up when another process changes the map before
// each of its transactions.
func testAlwaysConflict(t *testing.T, client *clientv3.Client) {
	c := allocator.Config{FirstPort: 30000, LastPort: 32767}
	testenv.NoError(t, newStore(t, client, c).Create(t.Context()))
	late := connect(t, client.Endpoints()[0])
	faster := &rival{KV: late.KV}
	late.KV = faster
	s := newStore(t, late, c)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := s.Commit(ctx, []allocator.Op{{Claim: allocator.Claim{Key: allocator.PortKey(30080), Owner: "me", Token: 1}}})
	if !errors.Is(err, allocator.ErrConflict) {
		t.Errorf("got error %v after %d transactions, want %v", err, faster.times, allocator.ErrConflict)
	}
	if got := stored(t, client, "30000-32767"); len(got) != 0 {
		t.Errorf("keys of the map: got %v, want none", got)
	}
}
