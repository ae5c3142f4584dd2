package backendtest

import (
	"math/rand/v2"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
)

// subject is a backend under test, and what its dataplane holds.
type subject struct {
	course *course
	// setUpTime is how long the testbed took to set up; 0 without a testbed.
	setUpTime time.Duration

	backend proxy.Backend
	applied proxy.Snapshot
	faults  *faults
	// lacking reports whether the dataplane lacks a capability.
	lacking func(Capability) bool
	// renew makes a backend, and dump returns what backends have programmed. track makes a tracker.
	renew func(testing.TB) proxy.Backend
	dump  func(testing.TB) string
	track func() tracking
	// verify checks the dataplane in another way; nil for none. unfinished is that of LawsConfig.
	verify     func(testing.TB)
	unfinished func(proxy.Backend) bool
}

// restart replaces the backend by a new one, as a new process would: it knows nothing.
func (s *subject) restart(t testing.TB) {
	t.Helper()
	s.close(t)
	s.backend, s.applied = s.renew(t), proxy.Snapshot{}
}

// close closes the backend, if there is one. One that hangs stays open.
func (s *subject) close(t testing.TB) {
	t.Helper()
	if s.backend == nil || s.course.ended() != "" {
		return
	}
	returned := make(chan error, 1)
	go func() { returned <- s.backend.Close() }()
	late := time.NewTimer(callPatience)
	defer late.Stop()
	select {
	case err := <-returned:
		if err != nil {
			t.Errorf("closing %T: %v", s.backend, err)
		}
	case <-late.C:
		t.Errorf("Close: got no result within %v; want one", callPatience)
		s.course.end("Close of the backend hangs")
	}
}

// apply applies a snapshot, again while injected faults make it fail.
func (s *subject) apply(t testing.TB, next proxy.Snapshot) {
	t.Helper()
	var err error
	for range patienceWithFaults {
		if err = s.try(t, next); err == nil {
			return
		}
	}
	t.Fatalf("Apply: got errors in %d tries, the last one %v", patienceWithFaults, err)
}

// operations returns the number of kernel operations of the backend so far, if it
// counts them.
func (s *subject) operations(t testing.TB) uint64 {
	t.Helper()
	operations := s.backend.Abilities().Operations
	if operations == nil {
		t.Skip("the backend does not count its operations")
	}
	return operations()
}

// newHistory makes a history of Services that the backend can serve.
func (s *subject) newHistory(r *rand.Rand, samples int) *history {
	return newHistory(r, s.track(), samples, s.lacking(Affinity))
}

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}
