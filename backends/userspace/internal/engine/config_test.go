package engine

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// The defaults are as documented, including the number of attempts.
func TestDefaults(t *testing.T) {
	t.Parallel()
	want := Config{
		Timeouts: Timeouts{
			Dial:    []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second},
			Suspect: 5 * time.Second, Idle: 2 * time.Hour, HalfClosed: 5 * time.Minute, Drain: 10 * time.Minute,
			Session: time.Minute, Wake: 30 * time.Second,
		},
		Connections: 65_536, Sessions: 65_536, AffinityTotal: 262_144,
	}
	for name, c := range map[string]Config{"zero": {}, "empty Timeouts.Dial": {Timeouts: Timeouts{Dial: []time.Duration{}}}} {
		got := c.withDefaults()
		got.Hooks = Hooks{}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// If Hooks.Pick returns an invalid index, the engine chooses.
func TestInvalidPicks(t *testing.T) {
	t.Parallel()
	pool := snapshots.At(memoryEndpoint, netip.MustParseAddrPort("10.0.0.6:8080"))
	for _, choice := range []int{-1, 2} {
		e, err := New(Config{Hooks: Hooks{Pick: func(Flow, []*endpoints.Endpoint) int { return choice }}})
		testenv.NoError(t, err)
		if got := e.pick(Flow{}, pool); got < 0 || got >= len(pool) {
			t.Errorf("Pick returned %d for %d endpoints: got %d, want a valid index", choice, len(pool), got)
		}
		e.Close()
	}
}

// Each wait is longer than the one before, up to a second, and ends with its context.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b backoff
		var got []time.Duration
		for range 10 {
			start := time.Now()
			b.wait(t.Context())
			got = append(got, time.Since(start))
		}
		var want []time.Duration
		for _, ms := range []time.Duration{5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000} {
			want = append(want, ms*time.Millisecond)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("waits (-want +got):\n%s", diff)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		start := time.Now()
		b.wait(ctx)
		if took := time.Since(start); took != time.Millisecond {
			t.Errorf("with a context that ends after 1 ms: got a wait of %v, want 1 ms", took)
		}
	})
}
