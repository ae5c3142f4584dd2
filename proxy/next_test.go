package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/vipkit/vipkit/internal/testing/objects"
)

// ended returns a context that has ended.
func ended(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// waitFor starts n goroutines that wait for a snapshot after the given one.
func waitFor(ctx context.Context, tr Source, after Snapshot, n int) <-chan Snapshot {
	out := make(chan Snapshot, n)
	for range n {
		go func() {
			if s, err := tr.Next(ctx, after); err == nil {
				out <- s
			}
		}()
	}
	return out
}

func TestNextWaitsForSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := NewServiceChangeTracker(TrackerOptions{})
		got := waitFor(t.Context(), tr, Snapshot{}, 3)
		tr.UpdateService(apiService("web", "10.96.0.1"))
		synctest.Wait()
		if len(got) != 0 {
			t.Errorf("before Synced: got %d snapshots, want none", len(got))
		}
		tr.UpdateService(apiService("api", "10.96.0.2"))
		tr.Synced()
		synctest.Wait()
		if len(got) != 3 {
			t.Fatalf("got %d snapshots, want one for each of 3 waiters", len(got))
		}
		for range 3 {
			if s := <-got; s.Generation() != 1 || s.Len() != 2 {
				t.Errorf("got generation %d with %d ports, want 1 with 2", s.Generation(), s.Len())
			}
		}
	})
}

func TestNextWakesAllAndCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTestTracker()
		first := newest(t, tr)
		got := waitFor(t.Context(), tr, first, 5)
		synctest.Wait()
		tr.UpdateService(nil)
		tr.DeleteService(objectName("unknown"))
		tr.UpdateEndpointSlice(apiSlice("x", "unknown", "10.0.0.1"))
		synctest.Wait()
		if len(got) != 0 {
			t.Errorf("nothing changed: got %d snapshots, want none", len(got))
		}
		tr.UpdateService(apiService("web", "10.96.0.1"))
		synctest.Wait()
		if len(got) != 5 {
			t.Fatalf("got %d snapshots, want one for each of 5 waiters", len(got))
		}
		for range 5 {
			if s := <-got; s.Generation() != 2 {
				t.Errorf("got generation %d, want 2", s.Generation())
			}
		}
		for i := range 100 {
			tr.UpdateService(apiService(fmt.Sprint("s", i), fmt.Sprintf("10.96.1.%d", i)))
		}
		if s := newest(t, tr); s.Generation() != 3 || s.Len() != 101 {
			t.Errorf("after 100 events: got generation %d with %d ports, want 3 with 101", s.Generation(), s.Len())
		}
	})
}

func TestEveryChangeWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTestTracker()
		last := newest(t, tr)
		for i, change := range []struct {
			do       func()
			problems int
		}{
			{func() { tr.UpdateService(apiService("web", "10.96.0.1")) }, 0},
			{func() { tr.UpdateEndpointSlice(apiSlice("web-1", "web", "10.0.0.1", "bad")) }, 1},
			{func() { tr.UpdateNode(objects.Node("here", "a", "192.168.0.9")) }, 1},
			{func() { tr.DeleteEndpointSlice(objectName("web-1")) }, 0},
			{func() { tr.DeleteService(objectName("web")) }, 0},
		} {
			got := waitFor(t.Context(), tr, last, 1)
			synctest.Wait()
			change.do()
			synctest.Wait()
			if len(got) != 1 {
				t.Fatalf("change %d: got no snapshot, want one", i)
			}
			last = <-got
			if want := uint64(i + 2); last.Generation() != want || len(problemText(last)) != change.problems {
				t.Errorf("change %d: got generation %d and problems %q, want %d and %d problems", i, last.Generation(), problemText(last), want, change.problems)
			}
		}
	})
}

func TestNextEndsWithItsContext(t *testing.T) {
	tr := newTestTracker()
	first := newest(t, tr)
	if s, err := tr.Next(ended(t), first); !errors.Is(err, context.Canceled) || !s.IsZero() {
		t.Errorf("got snapshot of generation %d and error %v, want the zero one and %v", s.Generation(), err, context.Canceled)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, err := tr.Next(ctx, first); !errors.Is(err, context.Canceled) {
				t.Errorf("got error %v, want %v", err, context.Canceled)
			}
		})
	}
	cancel(errors.New("enough"))
	wg.Wait()
	if s, err := tr.Next(ended(t), Snapshot{}); err != nil || s.Generation() != 1 {
		t.Errorf("with a snapshot at hand: got generation %d and error %v, want 1 and none", s.Generation(), err)
	}
}

// TestConcurrentUse is for the race detector: writers, waiters and readers of
// the same snapshots. The last snapshot equals that of a single writer.
func TestConcurrentUse(t *testing.T) {
	tr := newTestTracker()
	const writers, services, rounds = 4, 10, 20
	name := func(w, i int) string { return fmt.Sprintf("s-%d-%d", w, i) }
	write := func(w int) {
		for round := range rounds {
			for i := range services {
				n := name(w, i)
				tr.UpdateService(apiService(n, fmt.Sprintf("10.96.%d.%d", w, i), objects.ExternalIPs("198.51.100.1"), objects.Created(int64((w+i+round)%7))))
				tr.UpdateEndpointSlice(apiSlice(n, n, fmt.Sprintf("10.0.%d.%d @here", round, i)))
			}
			tr.UpdateNode(objects.Node("here", fmt.Sprint(round), fmt.Sprintf("192.168.0.%d", round)))
			if round+1 < rounds {
				tr.DeleteService(objectName(name(w, round%services)))
				tr.DeleteEndpointSlice(objectName(name(w, (round+1)%services)))
			}
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var writing, reading sync.WaitGroup
	for range 3 {
		reading.Go(func() { follow(ctx, t, tr) })
	}
	for w := range writers {
		writing.Go(func() { write(w) })
	}
	writing.Wait()
	stop()
	reading.Wait()
	single := newTestTracker()
	single.UpdateNode(objects.Node("here", fmt.Sprint(rounds-1), fmt.Sprintf("192.168.0.%d", rounds-1)))
	for w := range writers {
		for i := range services {
			n := name(w, i)
			single.UpdateService(apiService(n, fmt.Sprintf("10.96.%d.%d", w, i), objects.ExternalIPs("198.51.100.1"), objects.Created(int64((w+i+rounds-1)%7))))
			single.UpdateEndpointSlice(apiSlice(n, n, fmt.Sprintf("10.0.%d.%d @here", rounds-1, i)))
		}
	}
	tr.UpdateNode(objects.Node("here", fmt.Sprint(rounds-1), fmt.Sprintf("192.168.0.%d", rounds-1)))
	for _, d := range differences(newest(t, tr), newest(t, single)) {
		t.Error(d)
	}
}

// follow reads and checks snapshots until ctx ends.
func follow(ctx context.Context, t *testing.T, source Source) {
	var last Snapshot
	for {
		s, err := source.Next(ctx, last)
		if err != nil {
			return
		}
		before := fingerprint(s)
		// If snapshots were missed, a port may have changed and changed back.
		next := s.Generation() == last.Generation()+1
		for c := range s.Changes(last) {
			if next && c.Old.Equal(c.New) {
				t.Errorf("change of %s changes nothing", c.New.Name)
			}
		}
		if s.Generation() <= last.Generation() || fingerprint(s) != before {
			t.Errorf("got generation %d after %d, want a later one that does not change", s.Generation(), last.Generation())
		}
		last = s
	}
}
