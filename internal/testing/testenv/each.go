package testenv

import (
	"errors"
	"sync"
)

// Each calls f with each number below n, several at a time, and returns its errors.
func Each(n, atOnce int, f func(i int) error) error {
	errs, slots := make([]error, n), make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			errs[i] = f(i)
			<-slots
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
