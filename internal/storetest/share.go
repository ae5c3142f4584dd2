package storetest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
)

// Share does something from several goroutines, b.N operations in all, some of which each
// call stands for. It gives who calls, from 0, and how often it has before. How many
// operations a second there were is reported.
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
