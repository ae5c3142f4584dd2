package proxy

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// flows is a FlowCleaner that records its calls and fails with err.
type flows struct {
	mu     sync.Mutex
	calls  []flowCall
	err    error
	due    bool
	panics bool
}

// flowCall is one call of RemoveStale: its time, how many ports the dataplane holds, and full.
type flowCall struct {
	At   time.Duration
	Held int
	Full bool
}

func (f *flows) RemoveStale(_ context.Context, held Snapshot, full bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, flowCall{sinceStart(), held.Len(), full})
	f.due = false
	if f.panics {
		panic("flows")
	}
	return f.err
}

func (*flows) AddFrontends([]*ServicePort) {}

func (f *flows) RetryDue() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.due
}

// set changes how the flows behave.
func (f *flows) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// sinceStart returns the time since a bubble of synctest began.
func sinceStart() time.Duration { return time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) }

func (f *flows) want(t *testing.T, when string, want ...flowCall) {
	t.Helper()
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	testenv.Same(t, want, f.calls, "%s: flows", when)
	f.calls = nil
}

// FlowCleaner gets what the dataplane holds. Its error fails the Apply and is retried, and the
// Runner still knows what the dataplane holds.
func TestFlowsFollowTheDataplane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flows{err: io.ErrNoProgress}
		verified := 0
		r := &Runner{FlowCleaner: f, RetryInterval: second, Observers: []Observer{{Verified: func(Snapshot) { verified++ }}}}
		x := start(t, r, nil)
		f.want(t, "at first", flowCall{0, 1, true})
		last := x.syncs[0]
		if last.Applied.Len() != 1 || !errors.Is(last.Err, io.ErrNoProgress) || last.Refused != nil || verified != 0 {
			t.Errorf("flows fail: got %d ports in the dataplane, error %v, refused %v, verified %d times; want 1, the error, none, 0",
				last.Applied.Len(), last.Err, last.Refused, verified)
		}
		f.set(func() { f.err = nil })
		sleepAndWait(time.Minute)
		f.want(t, "again", flowCall{second, 1, false})

		x.backend.behave(fails(9, io.ErrUnexpectedEOF))
		x.service("b")
		f.want(t, "the dataplane has not changed")
		x.backend.behave(fails(9, PortErrors{portName("b"): io.ErrUnexpectedEOF}))
		sleepAndWait(second)
		f.want(t, "one port is refused", flowCall{61 * second, 1, false})
		if last := x.syncs[len(x.syncs)-1]; len(last.Refused) != 1 {
			t.Errorf("one port is refused: got refused %v, want 1", last.Refused)
		}
		f.set(func() { f.err = io.ErrNoProgress })
		x.service("c")
		f.want(t, "flows fail, too", flowCall{61 * second, 2, false})
		if last := x.syncs[len(x.syncs)-1]; last.Refused != nil || !errors.Is(last.Err, io.ErrNoProgress) {
			t.Errorf("flows fail, too: got error %v, refused %v, want the error and none", last.Err, last.Refused)
		}
	})
}

// A resync calls RemoveStale if flows are due, although the dataplane has not changed.
func TestFlowsAreDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, b, tr := &flows{}, &watchful{}, newTestTracker()
		tr.Synced()
		r := &Runner{Source: tr, Backend: b, FlowCleaner: f, ResyncInterval: time.Minute}
		stop := goRun(t, r)
		sleepAndWait(90 * second)
		f.want(t, "at first", flowCall{0, 0, true})
		f.set(func() { f.due = true })
		sleepAndWait(5 * time.Minute)
		f.want(t, "when they are due", flowCall{2 * time.Minute, 0, false})
		if full := b.full.Load(); full != 1 {
			t.Errorf("got %d full Applies, want 1", full)
		}
		stop()
	})
}

// A resync that needs no Apply does not verify a dataplane that flows have never followed.
func TestFlowsFailAtAQuietResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, b, tr := &flows{err: io.ErrNoProgress}, &watchful{}, newTestTracker()
		tr.Synced()
		var verified atomic.Int32
		note := Observer{Verified: func(Snapshot) { verified.Add(1) }}
		r := &Runner{Source: tr, Backend: b, FlowCleaner: f, ResyncInterval: time.Minute, Observers: []Observer{note}}
		stop := goRun(t, r)
		sleepAndWait(10 * time.Minute)
		if full, n := b.full.Load(), verified.Load(); full != 1 || n != 0 {
			t.Errorf("flows fail: got %d full Applies, verified %d times; want 1 and 0", full, n)
		}
		f.set(func() { f.err = nil })
		sleepAndWait(time.Minute)
		if full, n := b.full.Load(), verified.Load(); full != 1 || n == 0 {
			t.Errorf("flows followed: got %d full Applies, verified %d times; want 1 and at least 1", full, n)
		}
		stop()
	})
}

// A panic of the cleaner does not end the process: a full Apply follows.
func TestFlowsThatPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flows{panics: true}
		x := start(t, &Runner{FlowCleaner: f, RetryInterval: second}, nil)
		f.want(t, "a panic", flowCall{0, 1, true})
		f.set(func() { f.panics = false })
		sleepAndWait(time.Minute)
		f.want(t, "and then", flowCall{second, 1, true})
		if x.syncs[0].Err == nil || !x.syncs[0].Applied.IsZero() {
			t.Errorf("a panic: got error %v and %d applied ports, want an error and the zero snapshot", x.syncs[0].Err, x.syncs[0].Applied.Len())
		}
	})
}

// A resync verifies the dataplane once RemoveStale has succeeded, too: the retry of RemoveStale is no
// full Apply, but it verifies. ErrUnsupported of a cleaner does not end the Runner.
func TestFlowsDelayVerification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flows{}
		var verified []time.Duration
		note := Observer{Verified: func(Snapshot) { verified = append(verified, sinceStart()) }}
		x := start(t, &Runner{FlowCleaner: f, ResyncInterval: time.Minute, RetryInterval: second, Observers: []Observer{note}}, nil)
		f.set(func() { f.err = ErrUnsupported })
		sleepAndWait(time.Minute)
		f.want(t, "the resync", flowCall{0, 1, true}, flowCall{time.Minute, 1, true})
		f.set(func() { f.err = nil })
		sleepAndWait(time.Minute - second)
		f.want(t, "the retry", flowCall{61 * second, 1, false})
		testenv.Same(t, []time.Duration{0, 61 * second}, verified, "times of Verified")
		x.stop()
		if err := <-x.done; err != nil {
			t.Errorf("Run: got error %v, want none", err)
		}
	})
}
