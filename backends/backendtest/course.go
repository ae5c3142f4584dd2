package backendtest

import (
	"cmp"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/vipkit/vipkit/proxy"
)

// course is how a run goes: whether tests still tell something new.
type course struct {
	// patience is how long a call of the backend may take for a snapshot of few service ports.
	patience time.Duration
	// misrouted says that packets of scenarios had wrong outcomes.
	misrouted bool
	// everything says that all tests run in all worlds.
	everything bool

	mu sync.Mutex
	// over says why the rest is not tested; empty as long as it is.
	over string
	// names are the tests so far, also those that -run does not select. passed has those that
	// ran, and whether they passed.
	names  []string
	passed map[string]bool
}

// ended returns why the rest is not tested; empty if it is.
func (c *course) ended() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

// end says why the rest is not tested. The first reason counts.
func (c *course) end(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = cmp.Or(c.over, why)
}

// name adds the name of a test.
func (c *course) name(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names = append(c.names, name)
}

// ran says that a test ran, and whether it passed.
func (c *course) ran(name string, passed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.passed == nil {
		c.passed = map[string]bool{}
	}
	c.passed[name] = passed
}

// orNew returns c, or if that is nil the course of a run of a good backend.
func (c *course) orNew() *course {
	if c == nil {
		return &course{patience: callPatience}
	}
	return c
}

// How long a call of the backend may take for a snapshot of few service ports by default, and more for each
// object that is added or removed. setUps is how much longer it may take than the testbed took to set
// up, which shows how busy a machine is, or how slow one that QEMU emulates. grace is how long a call may
// take to return after its context has ended.
const (
	callPatience = 20 * time.Second
	morePatience = 100 * time.Millisecond
	setUps       = 5
	grace        = time.Second
)

// patienceFor returns how long a call with snapshots may take.
func (s *subject) patienceFor(snapshots ...proxy.Snapshot) time.Duration {
	objects := 0
	for _, s := range snapshots {
		if s.IsZero() {
			continue
		}
		for p := range s.All() {
			objects += len(p.Frontends) + len(p.Cluster) + len(p.Local)
		}
	}
	return (s.course.patience + setUps*s.setUpTime + time.Duration(objects)*morePatience).Round(time.Second)
}

// call calls a method of a backend. If the method does not return in time, the test ends, and so
// do all others: they would wait, too.
func (c *course) call(t testing.TB, what string, limit time.Duration, method func(context.Context) error) error {
	t.Helper()
	if over := c.ended(); over != "" {
		t.Fatalf("left out: %s", over)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	returned := make(chan error, 1)
	go func() { returned <- method(ctx) }()
	late := time.NewTimer(limit + grace)
	defer late.Stop()
	select {
	case err := <-returned:
		if ctx.Err() == nil {
			return err
		}
		t.Errorf("%s: got no result within %v, until its context ended (then %v); want one", what, limit, err)
	case <-late.C:
		t.Errorf("%s: got no result within %v, and none %v after its context ended; want one", what, limit, grace)
	}
	c.end(what + " of the backend hangs")
	t.FailNow()
	return nil
}

// applyOnce calls Apply of the backend.
func (s *subject) applyOnce(t testing.TB, old, next proxy.Snapshot) error {
	t.Helper()
	return s.applyWith(t, s.backend, old, next)
}

// applyWith calls Apply of a backend, such as one beside that of the subject.
func (s *subject) applyWith(t testing.TB, b proxy.Backend, old, next proxy.Snapshot) error {
	t.Helper()
	return s.course.call(t, "Apply", s.patienceFor(old, next), func(ctx context.Context) error { return b.Apply(ctx, old, next) })
}

// cleanUp calls Cleanup of the backend, which has held at most the last snapshot and the ones before it.
func (s *subject) cleanUp(t testing.TB) error {
	t.Helper()
	return s.course.call(t, "Cleanup", s.patienceFor(s.applied), s.backend.Cleanup)
}
