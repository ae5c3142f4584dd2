package stagetest

import (
	"testing"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// nodeName is the host of a lab that has the backend.
const nodeName = "node"

// Stage is a network namespace with a backend in it. O are the options of the
// backend.
type Stage[O any] struct {
	// Lab has the namespace as the host node.
	Lab     *lab.Lab
	NS      *netns.NS
	Options O
	// Backend is what [Stage.Apply] applies to.
	Backend proxy.Backend
	// Flows, if not nil, follows the backend, as with a Runner.
	Flows proxy.FlowCleaner
	// Applied is the snapshot that was applied last.
	Applied proxy.Snapshot
	// New makes a backend in the namespace of the calling thread.
	New func(O) (proxy.Backend, error)
}

// NewStage makes a namespace that ends with the test, and a backend in it.
func NewStage[O any](t testing.TB, o O, newBackend func(O) (proxy.Backend, error)) *Stage[O] {
	t.Helper()
	l := lab.New(t, lab.Host{Name: nodeName})
	s := &Stage[O]{Lab: l, NS: l.NS(nodeName), Options: o, New: newBackend}
	s.Restart(t)
	return s
}

// Beside returns a stage in the same namespace, with a backend with other options.
func (s *Stage[O]) Beside(t testing.TB, o O) *Stage[O] {
	t.Helper()
	other := &Stage[O]{Lab: s.Lab, NS: s.NS, Options: o, New: s.New}
	other.Restart(t)
	return other
}

// Restart replaces the backend by a new one, which knows nothing.
func (s *Stage[O]) Restart(t testing.TB) {
	t.Helper()
	s.Applied = proxy.Snapshot{}
	err := s.NS.Do(func() (err error) {
		s.Backend, err = s.New(s.Options)
		return err
	})
	testenv.NoError(t, err)
}

// Apply applies a snapshot, from the one applied last.
func (s *Stage[O]) Apply(t testing.TB, want proxy.Snapshot) {
	t.Helper()
	if err := s.Backend.Apply(t.Context(), s.Applied, want); err != nil {
		t.Fatalf("Apply: got error %v, want none", err)
	}
	full := s.Applied.IsZero()
	s.Applied = want
	if s.Flows == nil {
		return
	}
	if full {
		s.Flows.AddFrontends(s.Backend.Abilities().FoundFrontends())
	}
	if err := s.Flows.RemoveStale(t.Context(), want, full); err != nil {
		t.Fatalf("Follow: got error %v, want none", err)
	}
}

// Operations returns the number of operations that the backend has counted.
func (s *Stage[O]) Operations(t testing.TB) uint64 {
	t.Helper()
	return s.Backend.Abilities().Operations()
}
