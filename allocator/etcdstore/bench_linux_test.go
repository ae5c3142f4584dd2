package etcdstore_test

import (
	"context"
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testing/servertest"
)

// BenchmarkCommit allocates and releases keys in turn; each is one operation.
func BenchmarkCommit(b *testing.B) {
	client := connect(b, servertest.StartEtcd(b).URL)
	s := newStore(b, client)
	for _, callers := range []int{1, 8, 64, 240} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			storetest.Share(b, callers, 2, func(ctx context.Context, caller, i int) error {
				return toggle(ctx, s, storetest.Key(caller+1), i)
			})
		})
	}
}

// toggle allocates a key and frees it: two operations.
func toggle(ctx context.Context, s allocator.Store, k allocator.Key, i int) error {
	op := allocator.Op{Claim: allocator.Claim{Key: k, Owner: "services/default/web", Token: uint64(i) + 1}}
	versions, err := s.Commit(ctx, []allocator.Op{op})
	if err != nil {
		return err
	}
	op.Claim.Version, op.Delete = versions[0], true
	_, err = s.Commit(ctx, []allocator.Op{op})
	return err
}

// BenchmarkPool reserves, binds and releases: three operations.
func BenchmarkPool(b *testing.B) {
	client := connect(b, servertest.StartEtcd(b).URL)
	p := newPool(b, newStore(b, client))
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			storetest.Share(b, callers, 3, func(ctx context.Context, _, _ int) error {
				claims, err := p.Reserve(ctx, "services/default/web", allocator.Request{Kind: allocator.IPv4})
				if err == nil {
					claims, err = p.Bind(ctx, claims...)
				}
				if err == nil {
					err = p.Release(ctx, claims...)
				}
				return err
			})
		})
	}
}

// BenchmarkFloor measures etcd alone, with transactions as 64 callers cause: each writes 64 claims.
func BenchmarkFloor(b *testing.B) {
	const claims = 64
	client := connect(b, servertest.StartEtcd(b).URL)
	b.ResetTimer()
	for done := 0; done < b.N; done += claims {
		var writes []clientv3.Op
		for i := range claims {
			writes = append(writes, clientv3.OpPut(fmt.Sprintf("/claims/10.96.0.%d", i),
				`{"owner":"services/default/web","token":"12345678901234567890","since":"2024-02-29T12:00:00.000000005Z"}`))
		}
		if _, err := client.Txn(b.Context()).Then(writes...).Commit(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}
