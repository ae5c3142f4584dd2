package filestore_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/filestore"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// BenchmarkCommit allocates and frees keys; each caller has its own key.
func BenchmarkCommit(b *testing.B) {
	for _, callers := range []int{1, 8, 64, 512} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			s := mustOpen(b, filepath.Join(b.TempDir(), "map"))
			storetest.Share(b, callers, 2, func(ctx context.Context, caller, _ int) error { return commitPair(ctx, s, caller) })
		})
	}
}

// commitPair allocates and frees the key of a caller.
func commitPair(ctx context.Context, s *filestore.Store, caller int) error {
	claim := allocator.Claim{Key: storetest.Key(caller), Owner: "default/web", Token: 1}
	versions, err := s.Commit(ctx, []allocator.Op{{Claim: claim}})
	if err != nil {
		return err
	}
	claim.Version = versions[0]
	_, err = s.Commit(ctx, []allocator.Op{{Claim: claim, Delete: true}})
	return err
}

// BenchmarkFloor measures the disk alone: it appends as many bytes as the callers write
// at once, and syncs the file.
func BenchmarkFloor(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			file, err := os.Create(filepath.Join(b.TempDir(), "log"))
			testenv.NoError(b, err)
			record := make([]byte, 12+40*callers)
			for b.Loop() {
				if _, err := file.Write(record); err != nil {
					b.Fatal(err)
				}
				testenv.NoError(b, file.Sync())
			}
			b.ReportMetric(float64(callers*b.N)/b.Elapsed().Seconds(), "ops/s")
			testenv.NoError(b, file.Close())
		})
	}
}

// BenchmarkPool reserves, binds and releases through a pool: three commits.
func BenchmarkPool(b *testing.B) {
	const callers = 64
	s := mustOpen(b, filepath.Join(b.TempDir(), "map"))
	p, err := allocator.NewPool(s, allocator.PoolOptions{Ranges: []allocator.Config{{FirstPort: 30000, LastPort: 32767}}})
	testenv.NoError(b, err)
	storetest.Share(b, callers, 3, func(ctx context.Context, _, _ int) error {
		claims, err := p.Reserve(ctx, "default/web", allocator.Request{Kind: allocator.Port})
		if err == nil {
			claims, err = p.Bind(ctx, claims...)
		}
		if err == nil {
			err = p.Release(ctx, claims...)
		}
		return err
	})
}

// BenchmarkManyPorts allocates 250 node ports for one owner, and frees them.
func BenchmarkManyPorts(b *testing.B) {
	s := mustOpen(b, filepath.Join(b.TempDir(), "map"))
	p, err := allocator.NewPool(s, allocator.PoolOptions{Ranges: []allocator.Config{{FirstPort: 30000, LastPort: 32767}}})
	testenv.NoError(b, err)
	for b.Loop() {
		claims, err := p.Reserve(b.Context(), "default/web", allocator.Request{Kind: allocator.Port, Count: 250})
		if err == nil {
			err = p.Release(b.Context(), claims...)
		}
		testenv.NoError(b, err)
	}
}
