package storetest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
)

// Share calls do from several goroutines. Each call counts as some operations, and all calls
// as b.N. It passes the number of the caller and how often that caller has called before, and
// reports the operations per second.
func Share(b *testing.B, callers, some int, do func(ctx context.Context, caller, i int) error) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ResetTimer()
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for i := 0; left.Add(-int64(some)) > -int64(some); i++ {
				if err := do(b.Context(), caller, i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}
