package backendtest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// faultShare is how many of a hundred commits fail, wherever nothing is counted.
const faultShare = 10

// patienceWithFaults is how often an Apply is tried until no commit of it fails.
const patienceWithFaults = 500

var errInjected = errors.New("injected fault")

// faults makes some commits fail.
type faults struct {
	mu      sync.Mutex
	random  *rand.Rand
	percent int
}

// around carries a commit out, or not, or does and says that nobody knows.
func (f *faults) around(commit func() error) error {
	f.mu.Lock()
	fails, done := f.random.IntN(100) < f.percent, f.random.IntN(4) == 0
	f.mu.Unlock()
	switch {
	case !fails:
		return commit()
	case !done:
		return errInjected
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
func (s *stage) calm() { s.faults.set(0) }

// try applies a snapshot once, and notes what the dataplane then holds, as a
// [proxy.Runner] does. Only injected faults may make it fail.
func (s *stage) try(t testing.TB, next proxy.Snapshot) error {
	t.Helper()
	err := s.backend.Apply(t.Context(), s.applied, next)
	var partial proxy.PortErrors
	switch {
	case err == nil:
		s.applied = next
	case !errors.Is(err, errInjected):
		t.Fatalf("Apply: %v", err)
	case errors.Is(err, proxy.ErrDataplaneLost):
		s.applied = proxy.Snapshot{}
	case errors.As(err, &partial):
		s.applied = next.Revert(s.applied, slices.Collect(maps.Keys(partial))...)
	}
	return err
}

// lawFaults: whatever commits fail, the dataplane holds what follows from the
// error, and gets to what is wanted in the end.
func lawFaults(t *testing.T, s *stage) {
	h := s.newHistory(testenv.Random(t), 12)
	failures, partial := 0, 0
	for range faultyApplies {
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
		if !s.applied.IsZero() {
			s.holdsExactly(t, err)
		}
	}
	s.apply(t, h.last)
	s.holdsExactly(t, nil)
	t.Logf("%d of %d Applies failed, %d of them for some ports", failures, faultyApplies, partial)
	if failures < 5 {
		t.Errorf("only %d of %d Applies failed, which shows nothing", failures, faultyApplies)
	}
}

// faultyApplies is how many Applies the law of faults looks at.
const faultyApplies = 300

// checkNames holds an error to ports that there were or are to be.
func (h *history) checkNames(t testing.TB, ports proxy.PortErrors, before proxy.Snapshot) {
	t.Helper()
	for name := range ports {
		_, was := before.Get(name)
		_, is := h.last.Get(name)
		if !was && !is {
			t.Errorf("the error names port %s, which is in neither snapshot", name)
		}
	}
}

// holdsExactly checks that the dataplane is what a new beginning with the
// snapshot that was applied makes of it.
func (s *stage) holdsExactly(t testing.TB, after error) {
	t.Helper()
	applied, dump := s.applied, s.dump(t)
	if err := s.backend.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.restart(t)
	s.apply(t, applied)
	if diff := cmp.Diff(s.dump(t), dump); diff != "" {
		t.Fatalf("after error %v, the dataplane is not what follows from it (-want +got):\n%s", after, diff)
	}
}
