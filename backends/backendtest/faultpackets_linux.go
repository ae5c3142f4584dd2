package backendtest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// lawFaultPackets: while an Apply has failed, packets of a service port that failed follow the old snapshot or
// the new one, or are refused. Packets of all other service ports follow the snapshot that the dataplane holds.
func lawFaultPackets(t *testing.T, s *stage) {
	h := newHistory(testenv.Random(t), s.tracker(nodeOptions()), 5, s.isLacking(Affinity))
	failures, checked := 0, 0
	for step := 0; step < 200 && failures < testenv.Rounds(24); step++ {
		s.faults.set(3 * faultShare)
		before := s.applied
		err := s.try(t, h.next(t))
		s.calm()
		if err == nil {
			continue
		}
		failures++
		var flights []flight
		for i := range h.samples {
			flights = append(flights, h.samples[i].randomFlights(h.random)...)
		}
		checked += s.checkBetween(t, before, h.last, err, s.inWorld(flights))
		if t.Failed() {
			t.Fatalf("in step %d, after error %v", step+1, err)
		}
		s.apply(t, h.last)
	}
	t.Logf("%d failed Applies, %d packets of service ports that failed", failures, checked)
	if failures < 4 || checked == 0 {
		t.Errorf("got %d failures and %d packets, or the test shows nothing", failures, checked)
	}
}

// checkBetween sends flights after an Apply that failed. It returns how many may follow either snapshot.
func (s *stage) checkBetween(t *testing.T, old, next proxy.Snapshot, err error, flights []flight) (either int) {
	t.Helper()
	testenv.NoError(t, s.flush())
	failed, some := errors.AsType[proxy.PortErrors](err)
	wants, probes := make([][]string, len(flights)), make([]probe, len(flights))
	for i, f := range flights {
		was, is := proxy.Route(old, s.packet(f)), proxy.Route(next, s.packet(f))
		before, after := s.allowed(f, was), s.allowed(f, is)
		switch {
		case some && failed[was.Name] == nil && failed[is.Name] == nil:
			wants[i] = s.allowed(f, proxy.Route(s.applied, s.packet(f)))
		case !some && slices.Equal(before, after):
			wants[i] = after
		default:
			wants[i] = slices.Concat(before, after, s.refusals(f, lab.Refused), s.refusals(f, lab.Silence))
			either++
		}
		probes[i] = probe{from: f.from, protocol: f.protocol, to: f.to, tries: 3, patience: patience}
	}
	replies, err := s.probeAll(t.Context(), probes)
	testenv.NoError(t, err)
	for i, f := range flights {
		for _, got := range summary(replies[i]) {
			if !slices.Contains(wants[i], got) {
				t.Errorf("%s: got %s, want one of %s", f, got, strings.Join(wants[i], ", "))
			}
		}
	}
	return either
}
