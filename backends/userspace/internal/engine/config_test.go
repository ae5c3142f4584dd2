package engine

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
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
		Connections: 65_536, Sessions: 65_536,
	}
	for name, c := range map[string]Config{"zero": {}, "empty Timeouts.Dial": {Timeouts: Timeouts{Dial: []time.Duration{}}}} {
		got := c.withDefaults()
		got.Hooks = Hooks{}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// If Hooks.Pick returns an invalid index, the choice is random, and does not follow the round.
func TestInvalidPicks(t *testing.T) {
	t.Parallel()
	for _, choice := range []int{-1, 3} {
		w := newFixture(t, Config{Hooks: Hooks{
			Dial: func(context.Context, Dial) (net.Conn, error) { return newFakeSocket(), nil },
			Pick: func(Flow, []*endpoints.Endpoint) int { return choice },
		}}, v1.ProtocolTCP)
		w.serveAt(memoryFrontend, memoryPool(1, 2, 3)...)
		count, inTurn, last := map[int]int{}, 0, 0
		for range 300 {
			n := w.chosen(t, "10.0.0.9:1")
			if count[n]++; n == last%3+1 {
				inTurn++
			}
			last = n
		}
		if len(count) != 3 || inTurn > 200 {
			t.Errorf("Pick returned %d: got choices %v, %d of 300 in turn; want all of 3, and about 100", choice, count, inTurn)
		}
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
