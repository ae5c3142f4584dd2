package proxy

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// counting is a backend that counts an operation for each Apply which finds drift.
type counting struct {
	*alert
	operations atomic.Uint64
	dirty      atomic.Bool
}

func (b *counting) Apply(ctx context.Context, old, new Snapshot) error {
	if b.dirty.Swap(false) {
		b.operations.Add(1)
	}
	return b.alert.Apply(ctx, old, new)
}

func (b *counting) Operations() uint64 { return b.operations.Load() }

// A repair verifies the dataplane. While others undo each one, repairs verify nothing, although
// the dataplane is as it should be for a moment after each; once it stays so, the next
// look verifies it. Others that only write what is there already disturb nobody.
func TestRepairsThatDoNotLastVerifyNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &counting{alert: &alert{noticed: make(chan struct{}, 1), takes: time.Millisecond}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		var verified atomic.Int32
		tr := newTestTracker()
		tr.Synced()
		r := &Runner{Source: tr, Backend: b, ResyncInterval: time.Minute, Verified: func(Snapshot) { verified.Add(1) }}
		go func() { done <- r.Run(ctx) }()
		want := func(when string, n int32) {
			t.Helper()
			synctest.Wait()
			if got := verified.Swap(0); got != n {
				t.Errorf("%s: verified %d times, want %d", when, got, n)
			}
		}
		b.dirty.Store(true)
		time.Sleep(time.Second)
		want("at first", 1)
		for i := range 300 {
			b.dirty.Store(true)
			b.drift()
			time.Sleep(time.Second)
			want(fmt.Sprintf("repair %d in a row", i+1), map[bool]int32{true: 1}[i == 0])
		}
		time.Sleep(time.Minute)
		want("a quiet minute later", 1)
		for range 10 {
			b.drift()
			time.Sleep(time.Second)
			want("others write what is there", 1)
		}
		b.dirty.Store(true)
		b.drift()
		time.Sleep(time.Second)
		want("another repair", 1)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
