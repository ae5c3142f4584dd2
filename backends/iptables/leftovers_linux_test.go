package iptables

import (
	"slices"
	"testing"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/proxy"
)

// A new process that finds the rules of one service port too many removes these by their
// text, whatever kind of port it is, and does not write the chains again that have rules of
// many ports.
func TestLeftoversOfOnePort(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		for _, removed := range slices.Collect(sampleSnapshot().All()) {
			all := append(newPorts(removed.Name.Family, 100, 1)[20:], removed)
			most := s.operationsOf(t, proxy.NewSnapshot(stagetest.Node(), removed)) - s.operationsOf(t, proxy.NewSnapshot(stagetest.Node()))
			s.Restart(t)
			s.Apply(t, proxy.NewSnapshot(stagetest.Node(), all...))
			s.Restart(t)
			s.Apply(t, proxy.NewSnapshot(stagetest.Node(), all[:80]...))
			if got := s.Operations(t); got == 0 || got > most {
				t.Errorf("%v: operations that remove it: got %d, want at least one and at most %d, as for adding it", removed.Name, got, most)
			}
		}
	})
}

// operationsOf returns the number of operations of a first load.
func (s *stage) operationsOf(t *testing.T, w proxy.Snapshot) uint64 {
	t.Helper()
	fresh := newStage(t, s.Options)
	fresh.Apply(t, w)
	return fresh.Operations(t)
}
