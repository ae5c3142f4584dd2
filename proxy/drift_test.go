package proxy

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// watchful is a backend that can tell whether it was tampered with.
type watchful struct {
	full, partial atomic.Int32
	drifted       atomic.Bool
}

func (b *watchful) Apply(_ context.Context, old, _ Snapshot) error {
	if old.IsZero() {
		b.full.Add(1)
	} else {
		b.partial.Add(1)
	}
	return nil
}

func (b *watchful) Cleanup(context.Context) error { return nil }

func (b *watchful) Drifted(context.Context) bool { return b.drifted.Load() }

// With a backend that can tell, a resync looks only when there is a reason to.
func TestResyncNeedsAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTestTracker()
		tr.Synced()
		b := &watchful{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		verified := 0
		r := &Runner{Source: tr, Backend: b, ResyncInterval: time.Second, Verified: func(s Snapshot) {
			if verified++; s.IsZero() {
				t.Error("verified the zero snapshot, want one that was applied")
			}
		}}
		go func() { done <- r.Run(ctx) }()

		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		if full, partial := b.full.Load(), b.partial.Load(); full != 1 || partial != 0 {
			t.Errorf("in ten quiet seconds: got %d full and %d other Applies, want 1 and 0", full, partial)
		}
		if verified != 11 {
			t.Errorf("in ten quiet seconds: verified %d times, want once by the first Apply and once a second", verified)
		}
		b.drifted.Store(true)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if full, partial := b.full.Load(), b.partial.Load(); full != 4 || partial != 0 {
			t.Errorf("after three seconds of drift: got %d full and %d other Applies, want 4 and 0", full, partial)
		}
		if verified != 14 {
			t.Errorf("after three seconds of drift: verified %d times, want 14", verified)
		}
		b.drifted.Store(false)
		tr.UpdateService(apiService("web", "10.96.0.1"))
		synctest.Wait()
		if full, partial := b.full.Load(), b.partial.Load(); full != 4 || partial != 1 {
			t.Errorf("after a change: got %d full and %d other Applies, want 4 and 1", full, partial)
		}
		if verified != 14 {
			t.Errorf("a change: verified %d times, want 14 still", verified)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// What failed verifies nothing; all but some ports is better than nothing.
func TestVerifiedIsWhatIsThere(t *testing.T) {
	name := ServicePortName{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "a"}, Port: "http", Protocol: "TCP", Family: "IPv4"}
	for _, tc := range []struct {
		name  string
		err   error
		ports []int // of each verified snapshot
	}{
		{"lost", ErrDataplaneLost, nil},
		{"failed", io.ErrUnexpectedEOF, nil},
		{"partial", PortErrors{name: io.ErrUnexpectedEOF}, []int{0}},
		{"done", nil, []int{1}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var ports []int
			r := Runner{RetryInterval: time.Hour, Verified: func(s Snapshot) { ports = append(ports, s.Len()) }}
			x := start(t, &r, fails(9, tc.err))
			if got := x.tracker.snapshot.Len(); got != 1 {
				t.Fatalf("there are %d ports, want 1", got)
			}
			last := x.syncs[len(x.syncs)-1].Applied
			if want := len(tc.ports) > 0; want == last.IsZero() || want && last.Len() != tc.ports[0] {
				t.Errorf("%s: the account says that %d ports are applied, known: %v; want the same as of verified ones, %v", tc.name, last.Len(), !last.IsZero(), tc.ports)
			}
			if diff := cmp.Diff(tc.ports, ports); diff != "" {
				t.Errorf("%s: ports of verified snapshots (-want +got):\n%s", tc.name, diff)
			}
		})
	}
}
