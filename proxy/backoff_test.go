package proxy

import (
	"io"
	"testing"
	"testing/synctest"
	"time"
)

func TestRunnerBackoffIsBounded(t *testing.T) {
	for _, tc := range []struct {
		interval    time.Duration
		first, last time.Duration
	}{
		{0, DefaultRetryInterval, MaxRetryInterval},
		{-second, DefaultRetryInterval, MaxRetryInterval},
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
				t.Errorf("interval %v: got %v after %d failures, less than before: %v", tc.interval, got, failures, last)
			} else {
				last = got
			}
		}
		if last != tc.last {
			t.Errorf("interval %v: got retries after %v in the end, want %v", tc.interval, last, tc.last)
		}
	}
}

// TestRunnerBackoffBelongsToWhatFails: what fails for the first time does not wait as
// long as what has failed often.
func TestRunnerBackoffBelongsToWhatFails(t *testing.T) {
	a := PortErrors{portName("a"): io.ErrUnexpectedEOF}
	for _, tc := range []struct {
		name  string
		fails error
		want  time.Duration
	}{
		{"all that is known is lost", ErrDataplaneLost, second},
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
			// The port that goes on to fail waits as long as before.
			sleepAndWait(60 * second)
			if more := len(x.backend.taken()); more > 8 {
				t.Errorf("%s: got %d more calls within a minute", tc.name, more)
			}
		})
	}
}

// TestRunnerBackoffEndsAtResyncs: however often something has failed, it is tried, and
// everything looked at, within ResyncInterval.
func TestRunnerBackoffEndsAtResyncs(t *testing.T) {
	for _, fault := range []error{io.ErrUnexpectedEOF, ErrDataplaneLost, PortErrors{portName("a"): io.ErrUnexpectedEOF}} {
		synctest.Test(t, func(t *testing.T) {
			x := start(t, &Runner{RetryInterval: time.Second / 10, ResyncInterval: 2 * second}, fails(1000, fault))
			sleepAndWait(100 * second)
			x.backend.taken()
			sleepAndWait(10 * second)
			calls := x.backend.taken()
			if len(calls) < 4 || len(calls) > 6 {
				t.Errorf("%v, for long: got %d calls in 10 s, want one every 2 s", fault, len(calls))
			}
			x.backend.behave(nil)
			sleepAndWait(2 * second)
			if got := x.syncs[len(x.syncs)-1]; got.Err != nil || got.Applied.IsZero() {
				t.Errorf("%v, and then no more: after 2 s the last Apply gave %v", fault, got.Err)
			}
		})
	}
}
