package proxy

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestRunnerBackoffIsBounded(t *testing.T) {
	for _, tc := range []struct {
		interval    time.Duration
		first, last time.Duration
	}{
		{0, defaultRetryInterval, maxRetryInterval},
		{-second, defaultRetryInterval, maxRetryInterval},
		{time.Nanosecond, time.Nanosecond, 1 << 20},
		{45 * second, 45 * second, 45 * second},
		{100 * 24 * time.Hour, 100 * 24 * time.Hour, 100 * 24 * time.Hour},
	} {
		if got := doubled(tc.interval, 0); got != tc.first {
			t.Errorf("interval %v: got first retry after %v, want %v", tc.interval, got, tc.first)
		}
		last := time.Duration(0)
		for failures := range 100 {
			if got := doubled(tc.interval, failures); got < last {
				t.Errorf("interval %v: got %v after %d failures, want at least %v as before", tc.interval, got, failures, last)
			} else {
				last = got
			}
		}
		if last != tc.last {
			t.Errorf("interval %v: got retries after %v in the end, want %v", tc.interval, last, tc.last)
		}
	}
}

// TestRunnerBackoffBelongsToWhatFails: a new failure is retried after the first interval, however
// often something else has failed before.
func TestRunnerBackoffBelongsToWhatFails(t *testing.T) {
	a := PortErrors{portName("a"): io.ErrUnexpectedEOF}
	for _, tc := range []struct {
		name  string
		fails error
		want  time.Duration
	}{
		{"the state of the dataplane is lost", ErrDataplaneLost, second},
		{"the dataplane cannot be changed", io.ErrNoProgress, second},
		{"another port fails", PortErrors{portName("a"): io.ErrUnexpectedEOF, portName("b"): io.ErrUnexpectedEOF}, second},
		{"the same port fails", a, 16 * second},
	} {
		synctest.Test(t, func(t *testing.T) {
			x := start(t, &Runner{RetryInterval: second}, fails(100, a))
			sleepAndWait(14 * second) // tries after 0, 1, 3 and 7 s
			x.backend.taken()
			x.backend.behave(func(n int, _, _ Snapshot) error {
				if n == 1 {
					return tc.fails
				}
				return a
			})
			x.service("b")
			sleepAndWait(13 * second)
			times := x.backend.taken()
			if len(times) == 0 || times[0].At != 14*second {
				t.Fatalf("%s: got calls %v, want the new snapshot to be tried at once", tc.name, times)
			}
			if retried := len(times) > 1 && times[1].At == 14*second+tc.want; retried != (tc.want < 13*second) {
				t.Errorf("%s: got calls %v, want a retry after %v", tc.name, times, tc.want)
			}
			if tc.want > second {
				return
			}
			// The port that fails again and again waits as long as before.
			sleepAndWait(60 * second)
			if more := len(x.backend.taken()); more > 8 {
				t.Errorf("%s: got %d more calls within a minute, want at most 8", tc.name, more)
			}
		})
	}
}

// TestRunnerBackoffEndsAtResyncs: however often something has failed, a resync retries it
// within ResyncInterval.
func TestRunnerBackoffEndsAtResyncs(t *testing.T) {
	for _, fault := range []error{io.ErrUnexpectedEOF, ErrDataplaneLost, PortErrors{portName("a"): io.ErrUnexpectedEOF}} {
		synctest.Test(t, func(t *testing.T) {
			x := start(t, &Runner{RetryInterval: time.Second / 10, ResyncInterval: 2 * second}, fails(1000, fault))
			sleepAndWait(100 * second)
			x.backend.taken()
			sleepAndWait(10 * second)
			calls := x.backend.taken()
			if len(calls) < 4 || len(calls) > 6 {
				t.Errorf("%v many times: got %d calls in 10 s, want one every 2 s", fault, len(calls))
			}
			x.backend.behave(nil)
			sleepAndWait(2 * second)
			if got := x.syncs[len(x.syncs)-1]; got.Err != nil || got.Applied.IsZero() {
				t.Errorf("%v, then none: after 2 s the last Apply has error %v, want none", fault, got.Err)
			}
		})
	}
}

// TestRunnerBackoffAfterLossAtAResync: a resync that is due but fails is not due again at once, and a
// RetryInterval that is longer than the ResyncInterval holds.
func TestRunnerBackoffAfterLossAtAResync(t *testing.T) {
	for _, tc := range []struct {
		retry, resync time.Duration
		want          []time.Duration // between calls, from the one that fails
	}{
		{second, time.Minute, []time.Duration{second, 2 * second, 4 * second, 8 * second}},
		{10 * second, second, []time.Duration{10 * second, 10 * second, 10 * second, 10 * second}},
	} {
		synctest.Test(t, func(t *testing.T) {
			x := start(t, &Runner{RetryInterval: tc.retry, ResyncInterval: tc.resync}, nil)
			x.backend.taken()
			x.backend.behave(fails(4, ErrDataplaneLost))
			time.Sleep(2 * time.Minute)
			x.stop()
			synctest.Wait()
			calls := x.backend.taken()
			var got []time.Duration
			for i := range min(len(calls)-1, len(tc.want)) {
				got = append(got, calls[i+1].At-calls[i].At)
			}
			testenv.Same(t, tc.want, got, "retry %v, resync %v: times between calls", tc.retry, tc.resync)
		})
	}
}

// TestBackoffOfEachKind: the delay after Applies that fail as a whole starts again after one in
// which only some ports fail. The delay after failures of the same ports goes on after an Apply
// that fails as a whole, and starts again only after a success.
func TestBackoffOfEachKind(t *testing.T) {
	whole := Sync{Err: io.ErrUnexpectedEOF}
	ports := Sync{Err: io.ErrUnexpectedEOF, Refused: PortErrors{portName("a"): io.ErrUnexpectedEOF}}
	var b backoff
	var got []time.Duration
	for _, s := range []Sync{whole, whole, whole, ports, ports, whole, whole, ports, {}, ports, whole} {
		got = append(got, b.after(&s, second))
	}
	want := []time.Duration{second, 2 * second, 4 * second, second, 2 * second, second, 2 * second, 4 * second, 0, second, second}
	testenv.Same(t, want, got, "times to wait")
}
