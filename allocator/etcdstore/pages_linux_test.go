package etcdstore_test

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
)

// hookedGet calls before before each Get, which reads every page but the first.
type hookedGet struct {
	clientv3.KV
	before func()
}

func (b *hookedGet) Get(ctx context.Context, key string, o ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	b.before()
	return b.KV.Get(ctx, key, o...)
}

// testPagesOfOneRevision releases a key of the last page after the first page was read. All
// pages must be of the revision of the state: otherwise a watch from there would report the release again.
func testPagesOfOneRevision(t *testing.T, client *clientv3.Client) {
	s := newStore(t, client)
	var ops []allocator.Op
	for i := range 2000 {
		ops = append(ops, allocator.Op{Claim: allocator.Claim{Key: allocator.PortKey(uint16(30000 + i)), Owner: "me", Token: 1}})
	}
	versions := mustCommit(t, s, ops)
	last := ops[len(ops)-1].Claim
	last.Version = versions[len(versions)-1]
	kv, isReleased := client.KV, false
	defer func() { client.KV = kv }()
	client.KV = &hookedGet{KV: kv, before: func() {
		if !isReleased {
			isReleased = true
			mustCommit(t, s, []allocator.Op{{Claim: last, Delete: true}})
		}
	}}
	state, err := s.Load(t.Context())
	if err != nil || !isReleased {
		t.Fatalf("loading: error %v, released meanwhile: %t", err, isReleased)
	}
	if len(state.Claims) != len(ops) {
		t.Errorf("got %d claims, want %d", len(state.Claims), len(ops))
	}
}
