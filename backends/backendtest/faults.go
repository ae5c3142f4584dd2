package backendtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// faultShare is how many of a hundred commits fail, in tests that count no operations.
const faultShare = 10

// patienceWithFaults is how often an Apply is tried at most, until none of its commits fails.
const patienceWithFaults = 500

var errInjected = errors.New("injected fault")

// fault is an injected fault at an op, by its index modulo the number of ops.
type fault struct{ at int }

func (*fault) Error() string        { return errInjected.Error() }
func (*fault) Is(target error) bool { return target == errInjected }

// faults makes some commits fail.
type faults struct {
	mu      sync.Mutex
	random  *rand.Rand
	percent int
	met     bool // since the last Apply that succeeded
}

// follows reports whether an Apply that returns an error follows a fault.
func (f *faults) follows(err error) (met bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	met, f.met = f.met, f.met && err != nil
	return met
}

// around runs a commit; or returns an error instead; or runs it and returns an error with an
// unknown outcome.
func (f *faults) around(commit func() error) error {
	f.mu.Lock()
	fails, done, at := f.random.IntN(100) < f.percent, f.random.IntN(4) == 0, f.random.IntN(1<<16)
	f.met = f.met || fails
	f.mu.Unlock()
	switch {
	case !fails:
		return commit()
	case !done:
		return &fault{at}
	}
	if err := commit(); err != nil {
		return err
	}
	return fmt.Errorf("%w: %w", proxy.ErrDataplaneLost, errInjected)
}

func (f *faults) set(percent int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.percent = percent
}

// calm makes no commit fail any more.
func (s *subject) calm() { s.faults.set(0) }

// try applies a snapshot once, and records what the dataplane then holds, as a
// [proxy.Runner] does. Only injected faults may make it fail, or what one has left: an object of a service
// port that failed may refer to one that goes, which the kernel refuses; then the state is lost.
func (s *subject) try(t testing.TB, next proxy.Snapshot) error {
	t.Helper()
	err := s.applyOnce(t, s.applied, next)
	follows := s.faults.follows(err)
	if err != nil && !errors.Is(err, errInjected) && (!follows || !errors.Is(err, proxy.ErrDataplaneLost)) {
		if strings.Contains(err.Error(), "Message too long") {
			// In a user namespace no program may enlarge the buffer of its socket as it needs.
			testenv.CannotRun(t, "needs root: large transactions of nft and iptables")
		}
		t.Fatalf("Apply: %v", err)
	}
	s.applied = s.applied.Achieved(next, err)
	return err
}

// lawFaults: whatever ops fail, in one Apply or in several, the next Apply without faults succeeds, and the
// dataplane is then as if nothing had failed.
func lawFaults(t *testing.T, s *subject) {
	h := s.newHistory(testenv.Random(t), 12)
	failures, partial, applies := 0, 0, testenv.Rounds(300)
	for range applies {
		s.faults.set(3 * faultShare)
		before := s.applied
		err := s.try(t, h.next(t))
		s.calm()
		if err == nil {
			continue
		}
		failures++
		if ports, some := errors.AsType[proxy.PortErrors](err); some {
			partial++
			h.checkNames(t, ports, before)
		}
		if failures%3 > 0 {
			s.apply(t, h.last)
			s.wantAsFresh(t, h.last, fmt.Sprintf("after error %v: dataplane", err))
		}
	}
	s.apply(t, h.last)
	s.wantAsFresh(t, h.last, "in the end: dataplane")
	t.Logf("%d of %d Applies failed, %d of them for some ports", failures, applies, partial)
	if failures < 5 {
		t.Errorf("got %d failures of %d Applies, want at least 5, or the test shows nothing", failures, applies)
	}
}

// checkNames checks that an error names only ports of the old or the new snapshot.
func (h *history) checkNames(t testing.TB, ports proxy.PortErrors, before proxy.Snapshot) {
	t.Helper()
	for name := range ports {
		_, was := before.Get(name)
		_, is := h.last.Get(name)
		if !was && !is {
			t.Errorf("error: got port %s, want only ports of the two snapshots", name)
		}
	}
}

// finish has the backend do what it knows that it could not do, if it knows such things.
func (s *subject) finish(t testing.TB) {
	t.Helper()
	if s.unfinished == nil || s.applied.IsZero() || !s.unfinished(s.backend) {
		return
	}
	last := s.applied
	s.applied = proxy.Snapshot{}
	s.apply(t, last)
}
