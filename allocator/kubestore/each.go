package kubestore

import (
	"sync"
	"sync/atomic"
)

// atOnce is how many requests of one call are in flight at the same time.
const atOnce = 8

// each calls do for every number below n, atOnce at a time.
func each(n int, do func(i int)) {
	var last atomic.Int64
	var wg sync.WaitGroup
	for range min(n, atOnce) {
		wg.Go(func() {
			for i := int(last.Add(1)); i <= n; i = int(last.Add(1)) {
				do(i - 1)
			}
		})
	}
	wg.Wait()
}
