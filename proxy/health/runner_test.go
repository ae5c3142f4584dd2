package health

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// backend reports drift, and can hang and fail.
type backend struct {
	mu              sync.Mutex
	drifted, hangs  bool
	err             error
	applies, checks int
}

func (b *backend) Apply(ctx context.Context, _, _ proxy.Snapshot) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.applies++
	if b.hangs {
		b.mu.Unlock()
		<-ctx.Done()
		b.mu.Lock()
		return ctx.Err()
	}
	return b.err
}

func (b *backend) Cleanup(context.Context) error { return nil }

func (b *backend) Drifted(context.Context) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.checks++
	return b.drifted
}

func (*backend) WaitDrift(context.Context) error { return proxy.ErrUnsupported }

func (b *backend) set(drifted, hangs bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drifted, b.hangs, b.err = drifted, hangs, err
}

// An idle Runner is healthy as long as it verifies the dataplane.
func TestWithARunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{}
		tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{})
		runner := &proxy.Runner{Source: tracker, Backend: b, ResyncInterval: 30 * time.Second}
		s, err := New(Options{})
		testenv.NoError(t, err)
		runner.Observers = []proxy.Observer{s.Observer()}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- runner.Run(ctx) }()
		want := func(why string, after time.Duration, status int) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got, body := request(t, s, http.MethodGet, "/livez"); got != status {
				t.Errorf("%s: got %d, want %d; %s", why, got, status, body)
			}
		}
		want("the tracker is not synced", 10*time.Minute, 200)
		tracker.Synced()
		want("an idle day", 24*time.Hour, 200)
		b.mu.Lock()
		if b.applies != 1 || b.checks != 24*60*2 {
			t.Errorf("got %d Applies and %d checks for drift, want 1 and one every 30 seconds", b.applies, b.checks)
		}
		b.mu.Unlock()

		b.set(true, false, errors.New("no"))
		want("the dataplane cannot be repaired, for a while", 59*time.Second, 200)
		want("the dataplane cannot be repaired", time.Second, 503)
		b.set(true, false, nil)
		want("the dataplane is repaired", time.Minute, 200)
		b.set(true, true, nil)
		want("the dataplane hangs, for a while", 29*time.Second, 200)
		want("the dataplane hangs", time.Minute, 503)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
