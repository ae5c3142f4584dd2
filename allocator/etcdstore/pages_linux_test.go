package etcdstore_test

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
)

// between is a connection by which something happens before each page but the first.
type between struct {
	clientv3.KV
	happens func()
}

func (b *between) Get(ctx context.Context, key string, o ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	b.happens()
	return b.KV.Get(ctx, key, o...)
}

// testPagesAreOfOneTime releases what is on the last page while the first one is read. The
// state must be that of its version: what is gone from one page would be left in the map of
// another time, as if it were imported.
func testPagesAreOfOneTime(t *testing.T, client *clientv3.Client) {
	s := newStore(t, client, allocator.Config{FirstPort: 30000, LastPort: 32767})
	if err := s.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	var ops []allocator.Op
	for i := range 2000 {
		ops = append(ops, allocator.Op{Claim: allocator.Claim{Key: allocator.PortKey(uint16(30000 + i)), Owner: "me", Token: 1}})
	}
	versions := mustCommit(t, s, ops)
	last := ops[len(ops)-1].Claim
	last.Version = versions[len(versions)-1]
	kv, isReleased := client.KV, false
	defer func() { client.KV = kv }()
	client.KV = &between{KV: kv, happens: func() {
		if !isReleased {
			isReleased = true
			mustCommit(t, s, []allocator.Op{{Claim: last, Delete: true}})
		}
	}}
	state, err := s.Load(t.Context())
	if err != nil || !isReleased {
		t.Fatalf("loading: error %v, released meanwhile: %t", err, isReleased)
	}
	for _, c := range state.Claims {
		if c.Owner != "me" {
			t.Errorf("%v belongs to %q, want everything to be as it was before", c.Key, c.Owner)
		}
	}
	if len(state.Claims) != len(ops) {
		t.Errorf("got %d claims, want %d", len(state.Claims), len(ops))
	}
}
