package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const second = time.Second

func TestRunnerAppliesAtOnceAndCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := start(t, &Runner{MinInterval: 10 * second}, nil)
		x.want(t, "first", call{0, 0, 1, "a"})
		x.service("b")
		sleepAndWait(4 * second)
		x.service("c")
		x.tracker.DeleteService(objectName("a"))
		x.want(t, "within the interval")
		sleepAndWait(6 * second)
		x.want(t, "after the interval", call{10 * second, 1, 2, "-a b c"})
		sleepAndWait(90 * second)
		x.want(t, "nothing changes")
		x.service("d")
		synctest.Wait()
		x.want(t, "long after", call{100 * second, 2, 3, "d"})
		x.stop()
		synctest.Wait()
		x.wantEnd(t, nil)
	})
}

func TestRunnerWithoutMinInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := start(t, &Runner{}, nil)
		for _, name := range []string{"b", "c"} {
			x.service(name)
			synctest.Wait()
		}
		x.want(t, "each at once", call{0, 0, 1, "a"}, call{0, 1, 2, "b"}, call{0, 2, 3, "c"})
	})
}

// TestRunnerCountsFromTheEnd: the interval begins when an Apply is done.
func TestRunnerCountsFromTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := start(t, &Runner{MinInterval: 10 * second}, func(int, Snapshot, Snapshot) error { time.Sleep(3 * second); return nil })
		x.service("b")
		sleepAndWait(30 * second)
		x.want(t, "slow backend", call{0, 0, 1, "a"}, call{13 * second, 1, 2, "b"})
	})
}

func TestRunnerRetriesWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := start(t, &Runner{RetryInterval: second}, func(n int, _, _ Snapshot) error {
			if n == 4 || n == 6 {
				return nil
			}
			return io.ErrUnexpectedEOF
		})
		sleepAndWait(100 * second)
		testenv.Same(t, []call{{0, 0, 1, "a"}, {second, 0, 1, "a"}, {3 * second, 0, 1, "a"}, {7 * second, 0, 1, "a"}}, x.backend.calls, "three failures: calls of Apply")
		x.service("b")
		sleepAndWait(second)
		testenv.Same(t, []call{{100 * second, 1, 2, "b"}, {101 * second, 1, 2, "b"}}, x.backend.calls[4:], "a failure after a success: calls of Apply")
	})
}

// TestRunnerChangesDuringBackoff: a new snapshot is applied at once, and does not
// shorten the backoff that follows.
func TestRunnerChangesDuringBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := start(t, &Runner{RetryInterval: 10 * second}, fails(2, io.ErrUnexpectedEOF))
		sleepAndWait(second)
		x.service("b")
		sleepAndWait(60 * second)
		x.want(t, "new snapshot", call{0, 0, 1, "a"}, call{second, 0, 2, "a b"}, call{21 * second, 0, 2, "a b"})
	})
}

func TestRunnerRetryKeepsMinInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := start(t, &Runner{RetryInterval: second, MinInterval: 10 * second}, fails(1, io.ErrUnexpectedEOF))
		sleepAndWait(60 * second)
		x.want(t, "retry shorter than the interval", call{0, 0, 1, "a"}, call{10 * second, 0, 1, "a"})
	})
}

func TestRunnerRevertsOnlyFailedPorts(t *testing.T) {
	for _, reason := range []error{io.ErrUnexpectedEOF, fmt.Errorf("port: %w", ErrUnsupported)} {
		synctest.Test(t, func(t *testing.T) {
			// Within MinInterval, the three changes go into one Apply.
			x := start(t, &Runner{MinInterval: second, RetryInterval: 2 * second}, nil)
			x.backend.behave(fails(2, fmt.Errorf("apply: %w", PortErrors{portName("b"): reason, portName("a"): reason})))
			x.backend.taken()
			x.service("b")
			x.service("c")
			x.tracker.UpdateEndpointSlice(apiSlice("a-1", "a", "10.0.0.1"))
			sleepAndWait(second)
			x.want(t, "first try", call{second, 1, 2, "a b c"})
			x.backend.behave(nil)
			sleepAndWait(2 * second)
			x.want(t, "retry", call{3 * second, 2, 2, "a b"})
			sleepAndWait(100 * second)
			x.want(t, "after success")
		})
	}
}

func TestRunnerStartsOverAfterLoss(t *testing.T) {
	for _, loss := range []func() error{
		func() error { return fmt.Errorf("apply: %w", ErrDataplaneLost) },
		func() error { return PortErrors{portName("b"): ErrDataplaneLost} },
		func() error { return fmt.Errorf("%w: %w", ErrDataplaneLost, ErrUnsupported) },
		func() error { panic("defect") },
	} {
		synctest.Test(t, func(t *testing.T) {
			x := start(t, &Runner{RetryInterval: second}, func(n int, _, _ Snapshot) error {
				if n == 2 {
					return loss()
				}
				return nil
			})
			x.service("b")
			sleepAndWait(60 * second)
			x.want(t, "loss", call{0, 0, 1, "a"}, call{0, 1, 2, "b"}, call{second, 0, 2, "a b"})
		})
	}
}

func TestRunnerTurnsPanicsIntoErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log []string
		logger := funcr.New(func(_, args string) { log = append(log, args) }, funcr.Options{})
		x := start(t, &Runner{RetryInterval: second, Logger: logger}, func(n int, _, _ Snapshot) error {
			if n == 1 {
				_ = make([]int, n)[n]
			}
			return nil
		})
		sleepAndWait(10 * second)
		x.stop()
		synctest.Wait()
		x.wantEnd(t, nil)
		if len(x.syncs) != 2 || x.syncs[1].Err != nil {
			t.Fatalf("got syncs %+v, want one that failed and one that succeeded", x.syncs)
		}
		const want = "dataplane state unknown: panic: runtime error: index out of range [1] with length 1"
		if err := x.syncs[0].Err; err == nil || err.Error() != want {
			t.Errorf("got error %v, want %s", err, want)
		}
		parts := []string{`"error"="` + want + `"`, `"retryAfter"="1s"`, `"stack"="goroutine `, "runner_test.go"}
		if len(log) != 1 || slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(log[0], part) }) {
			t.Errorf("got log %q, want one line with each of %q", log, parts)
		}
	})
}

func TestRunnerEndsWhenUnsupported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := start(t, &Runner{}, fails(9, fmt.Errorf("no such set type: %w", ErrUnsupported)))
		x.wantEnd(t, ErrUnsupported)
		x.want(t, "once", call{0, 0, 1, "a"})
		if len(x.syncs) != 1 || !errors.Is(x.syncs[0].Err, ErrUnsupported) {
			t.Errorf("got syncs %+v, want one with that error", x.syncs)
		}
	})
}

// failingSource fails after a while.
type failingSource struct{ after time.Duration }

func (s failingSource) Next(context.Context, Snapshot) (Snapshot, error) {
	time.Sleep(s.after)
	return Snapshot{}, io.ErrNoProgress
}

func TestRunnerEndsWithItsSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := start(t, &Runner{Source: failingSource{second}}, nil)
		sleepAndWait(2 * second)
		x.wantEnd(t, io.ErrNoProgress)
		x.want(t, "nothing known")
	})
}

// faltering is a source that returns one snapshot, then fails once when its context ends, and
// then has no further snapshots.
type faltering struct{ asked int }

func (s *faltering) Next(ctx context.Context, _ Snapshot) (Snapshot, error) {
	if s.asked++; s.asked == 1 {
		return NewSnapshot(nil), nil
	}
	<-ctx.Done()
	if s.asked == 2 {
		return Snapshot{}, io.ErrNoProgress
	}
	return Snapshot{}, ctx.Err()
}

// TestRunnerEndsIfItsSourceFailsAtAResync: a source may fail at the moment at which a resync
// is due.
func TestRunnerEndsIfItsSourceFailsAtAResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := start(t, &Runner{Source: &faltering{}, ResyncInterval: second}, nil)
		sleepAndWait(10 * second)
		x.wantEnd(t, io.ErrNoProgress)
	})
}

func TestRunnerEndsWithItsContext(t *testing.T) {
	for _, tc := range []struct {
		name   string
		runner Runner
		apply  func(int, Snapshot, Snapshot) error
	}{
		{"while it waits", Runner{}, nil},
		{"in its interval", Runner{MinInterval: time.Hour}, nil},
		{"in backoff", Runner{RetryInterval: time.Hour}, fails(9, io.ErrUnexpectedEOF)},
		{"before a resync", Runner{ResyncInterval: time.Hour}, nil},
		{"in Apply", Runner{}, func(int, Snapshot, Snapshot) error { time.Sleep(second); return ErrUnsupported }},
	} {
		synctest.Test(t, func(t *testing.T) {
			x := start(t, &tc.runner, tc.apply)
			x.stop()
			sleepAndWait(second)
			select {
			case err := <-x.done:
				if err != nil {
					t.Errorf("%s: Run: got error %v, want none", tc.name, err)
				}
			default:
				t.Errorf("%s: Run still runs after its context", tc.name)
			}
			x.want(t, tc.name, call{0, 0, 1, "a"})
		})
	}
	r := Runner{Source: newTestTracker(), Backend: &fakeBackend{apply: fails(9, io.ErrUnexpectedEOF)}}
	if err := r.Run(ended(t)); err != nil {
		t.Errorf("with a context that has ended: got error %v, want none", err)
	}
}

func TestRunnerResyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := start(t, &Runner{ResyncInterval: 60 * second}, nil)
		x.service("b")
		sleepAndWait(130 * second)
		x.want(t, "quiet", call{0, 0, 1, "a"}, call{0, 1, 2, "b"}, call{60 * second, 0, 2, "a b"}, call{120 * second, 0, 2, "a b"})
	})
}

// TestRunnerResyncsInSpiteOf: neither continuous changes nor a port that cannot be
// programmed delay resyncs.
func TestRunnerResyncsInSpiteOf(t *testing.T) {
	for _, tc := range []struct {
		name  string
		apply func(int, Snapshot, Snapshot) error
		every time.Duration
	}{
		{"changes", nil, 10 * second},
		{"a port that fails", func(int, Snapshot, Snapshot) error { return PortErrors{portName("a"): io.ErrUnexpectedEOF} }, time.Hour},
	} {
		synctest.Test(t, func(t *testing.T) {
			x := start(t, &Runner{ResyncInterval: 60 * second}, tc.apply)
			for i := range 20 {
				sleepAndWait(min(tc.every, 10*second))
				if tc.every < time.Minute {
					x.service(string(rune('b' + i)))
					synctest.Wait()
				}
			}
			full := 0
			for _, c := range x.backend.taken() {
				if c.Old == 0 {
					full++
				}
			}
			if full < 3 || full > 4 {
				t.Errorf("%s: got %d calls of Apply from the zero Snapshot in 200s, want 3 or 4", tc.name, full)
			}
		})
	}
}

func TestRunnerAccounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		x := start(t, &Runner{MinInterval: 10 * second, RetryInterval: second}, func(n int, _, _ Snapshot) error {
			time.Sleep(time.Duration(n) * time.Millisecond)
			if n == 2 {
				return PortErrors{portName("c"): io.ErrUnexpectedEOF}
			}
			return nil
		})
		sleepAndWait(5 * second)
		x.service("b")
		x.service("c") // still within the interval: both go into one Apply
		sleepAndWait(30 * second)
		x.stop()
		synctest.Wait()
		type account struct {
			Generation, Operations uint64
			Full, Failed           bool
			Changed                int
			Start, Duration        time.Duration
		}
		var got []account
		for _, s := range x.syncs {
			got = append(got, account{s.Snapshot.Generation(), s.Operations, s.Full, s.Err != nil, s.Changed, s.Start.Sub(began), s.Duration})
		}
		want := []account{
			{1, 1, true, false, 1, 0, time.Millisecond},
			{2, 2, false, true, 2, 10*second + time.Millisecond, 2 * time.Millisecond},
			{2, 1, false, false, 1, 20*second + 3*time.Millisecond, 3 * time.Millisecond},
		}
		testenv.Same(t, want, got, "accounts")
	})
}

func TestRunnerNeedsBothEnds(t *testing.T) {
	for _, r := range []*Runner{{Backend: &fakeBackend{}}, {Source: newTestTracker()}} {
		if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "required") {
			t.Errorf("got error %v, want one that names what is required", err)
		}
	}
}

// TestObserversInAnyOrder: all observers get the same calls, before and after each Apply,
// whatever their order; nil functions are not called.
func TestObserversInAnyOrder(t *testing.T) {
	for _, first := range []int{0, 1, 2} {
		synctest.Test(t, func(t *testing.T) {
			calls := make([][]string, 3)
			r := &Runner{ResyncInterval: time.Minute}
			for i := range calls {
				record := func(format string, args ...any) { calls[i] = append(calls[i], fmt.Sprintf(format, args...)) }
				o := Observer{
					Begin: func(of *Runner) error { record("begin %t", of == r); return nil },
					Started: func(s Sync) {
						record("started %d full %t changed %d at %v", s.Snapshot.Len(), s.Full, s.Changed, s.Start)
					},
					Synced: func(s Sync) {
						record("synced %d of %d: %v, refused %v", s.Applied.Len(), s.Snapshot.Len(), s.Err, s.Refused)
					},
					Verified: func(s Snapshot) { record("verified %d", s.Len()) },
				}
				r.Observers = append(r.Observers, o, Observer{})
			}
			r.Observers = append(r.Observers[2*first:], r.Observers[:2*first]...)
			refuses := PortErrors{portName("b"): io.ErrNoProgress}
			x := start(t, r, func(n int, _, _ Snapshot) error { return map[int]error{2: io.ErrUnexpectedEOF, 3: refuses}[n] })
			x.service("b")
			sleepAndWait(time.Hour)
			kinds := map[string]int{}
			for _, line := range calls[0] {
				kind, _, _ := strings.Cut(line, " ")
				kinds[kind]++
			}
			if kinds["begin"] != 1 || kinds["started"] != kinds["synced"] || kinds["started"] < 60 || kinds["verified"] < 1 {
				t.Errorf("got calls %v, want one begin, a start for each sync, one each minute, and at least one verified", kinds)
			}
			for i := range calls {
				if diff := cmp.Diff(calls[0], calls[i]); diff != "" {
					t.Errorf("calls of observer %d (-first +got):\n%s", i, diff)
				}
			}
		})
	}
}

// An error of Begin ends Run before anything is applied.
func TestObserverThatDoesNotBegin(t *testing.T) {
	b := &fakeBackend{start: time.Now(), apply: fails(0, nil)}
	r := &Runner{Source: newTestTracker(), Backend: b, Observers: []Observer{{}, {Begin: func(*Runner) error { return io.ErrNoProgress }}}}
	if err := r.Run(t.Context()); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("got error %v, want the error of Begin", err)
	}
	if calls := b.taken(); len(calls) > 0 {
		t.Errorf("got %d Applies, want none", len(calls))
	}
}
