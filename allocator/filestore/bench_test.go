package filestore_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/filestore"
	"github.com/vipkit/vipkit/internal/storetest"
)

// BenchmarkCommit takes and frees keys, each caller its own.
func BenchmarkCommit(b *testing.B) {
	for _, callers := range []int{1, 8, 64, 512} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			s := mustOpen(b, filepath.Join(b.TempDir(), "map"))
			share := max(1, b.N/callers)
			b.ResetTimer()
			var wg sync.WaitGroup
			for c := range callers {
				wg.Go(func() { commitPairs(b, s, c, share) })
			}
			wg.Wait()
			b.ReportMetric(float64(2*share*callers)/b.Elapsed().Seconds(), "commits/s")
		})
	}
}

// commitPairs takes and frees one key again and again.
func commitPairs(b *testing.B, s *filestore.Store, caller, count int) {
	claim := allocator.Claim{Key: storetest.Key(caller), Owner: "default/web", Token: 1}
	for range count {
		claim.Version = 0
		versions, err := s.Commit(b.Context(), []allocator.Op{{Claim: claim}})
		if err == nil {
			claim.Version = versions[0]
			_, err = s.Commit(b.Context(), []allocator.Op{{Claim: claim, Delete: true}})
		}
		if err != nil {
			b.Error(err)
			return
		}
	}
}

// BenchmarkFloor is what the disk allows: it appends as many bytes as so many
// callers do at once, and waits for the disk.
func BenchmarkFloor(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			file, err := os.Create(filepath.Join(b.TempDir(), "log"))
			if err != nil {
				b.Fatal(err)
			}
			record := make([]byte, 12+40*callers)
			for b.Loop() {
				if _, err := file.Write(record); err != nil {
					b.Fatal(err)
				}
				if err := file.Sync(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(callers*b.N)/b.Elapsed().Seconds(), "commits/s")
			if err := file.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkPool reserves, binds and releases through a pool, which are three
// commits.
func BenchmarkPool(b *testing.B) {
	const callers = 64
	s := mustOpen(b, filepath.Join(b.TempDir(), "map"))
	p, err := allocator.NewPool(s, allocator.PoolOptions{Ranges: []allocator.Config{{FirstPort: 30000, LastPort: 32767}}})
	if err != nil {
		b.Fatal(err)
	}
	share := max(1, b.N/callers)
	b.ResetTimer()
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range share {
				claims, err := p.Reserve(b.Context(), "default/web", allocator.Request{Kind: allocator.Port})
				if err == nil {
					claims, err = p.Bind(b.Context(), claims...)
				}
				if err == nil {
					err = p.Release(b.Context(), claims...)
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(3*share*callers)/b.Elapsed().Seconds(), "commits/s")
}

// BenchmarkManyPorts takes 250 node ports for one owner, and frees them.
func BenchmarkManyPorts(b *testing.B) {
	s := mustOpen(b, filepath.Join(b.TempDir(), "map"))
	p, err := allocator.NewPool(s, allocator.PoolOptions{Ranges: []allocator.Config{{FirstPort: 30000, LastPort: 32767}}})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		claims, err := p.Reserve(b.Context(), "default/web", allocator.Request{Kind: allocator.Port, Count: 250})
		if err == nil {
			err = p.Release(b.Context(), claims...)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
