package backendtest

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// faultInjection says that a law needs Config.Faulty.
const faultInjection Capability = "faults can be injected"

// law is what is true of every dataplane, whatever it does with packets.
type law struct {
	name  string
	check func(*testing.T, *stage)
	// calm is for laws that count operations.
	calm  bool
	needs Capability
}

// testLaws checks laws.
func (c *Config) testLaws(t *testing.T) {
	for _, law := range []law{
		{"Idempotence", onSubject(lawIdempotence), true, ""},
		{"PathIndependence", onSubject(lawPathIndependence), false, ""},
		{"Adoption", onSubject(lawAdoption), true, ""},
		{"EstablishedFlows", lawEstablishedFlows, false, LastingConnections},
		{"Economy", onSubject(lawEconomy), true, ""},
		{"Faults", onSubject(lawFaults), false, faultInjection},
		{"FaultPackets", lawFaultPackets, false, faultInjection},
		{"Cleanup", lawCleanup, true, ""},
		{"Cancellation", onSubject(lawCancellation), true, ""},
		{"Leaks", lawLeaks, false, ""},
		{"Readers", lawReaders, false, ""},
		{"Repair", lawRepair, true, ""},
		{"Marks", lawMarks, false, ForeignMarks},
		{"HostMarks", lawHostMarks, false, HostMarks},
		{"EveryRefusal", lawEveryRefusal, false, ""},
	} {
		if !c.canCheck(&law) {
			continue
		}
		c.run(t, "Laws/"+law.name, func(t *testing.T) {
			if law.name != "Leaks" { // It counts what the whole process has open.
				t.Parallel()
			}
			s := c.setUp(t)
			if law.calm {
				s.calm()
			}
			law.check(t, s)
		})
	}
}

// canCheck reports whether a law says something of the backend in this world.
func (c *Config) canCheck(l *law) bool {
	switch {
	case c.lacks(l.needs), l.needs == faultInjection && c.Faulty == nil:
		return false
	case slices.Contains([]string{"EstablishedFlows", "FaultPackets", "Marks", "HostMarks", "EveryRefusal"}, l.name) && c.course.misrouted:
		return false // They send packets, too.
	case l.needs == ForeignMarks, l.needs == HostMarks:
		return c.world.tables == "" // Otherwise programs of the world set marks.
	case l.name == "Leaks":
		return c.world.name == "" // Other worlds are tested beside each other.
	}
	return true
}

// onSubject returns a law that needs no packets as one of a stage.
func onSubject(check func(*testing.T, *subject)) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) { check(t, &s.subject) }
}

// Established connections continue when a new process starts and when other Services
// change.
func lawEstablishedFlows(t *testing.T, s *stage) {
	h := s.newHistory(testenv.Random(t), 10)
	steady := exposed(77, cluster.Local, cluster.Remote)
	o := steady.Objects()
	o.HandTo(h.tracker)
	s.apply(t, h.next(t))
	flights := s.reachable(flightsTo(steady, clients(onlyTCP(), cluster.Client, cluster.Node, cluster.Outside)))
	lasting, first := s.establish(t, slices.Repeat(flights, 8))
	for range 5 {
		s.restart(t)
		s.apply(t, h.next(t))
	}
	wantSame(t, lasting, first)
}

// The number of open files and goroutines does not grow with the number of Applies.
func lawLeaks(t *testing.T, s *stage) {
	h := s.newHistory(testenv.Random(t), 10)
	s.apply(t, h.next(t))
	s.apply(t, h.next(t))
	files, routines := testenv.OpenFiles(t), runtime.NumGoroutine()
	for range 50 {
		s.apply(t, h.next(t))
	}
	var n, m int
	for range 1000 { // a process that is about to end may take a moment
		if n, m = testenv.OpenFiles(t), runtime.NumGoroutine(); n <= files && m <= routines {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("after 50 more Applies: got %d open files and %d goroutines, want at most %d and %d as before", n, m, files, routines)
}

// A backend does not change a snapshot: other goroutines may read it during Apply.
func lawReaders(t *testing.T, s *stage) {
	h := s.newHistory(testenv.Random(t), 10)
	for range 10 {
		next := h.next(t)
		packet := s.packet(flight{from: cluster.Client, to: h.samples[0].Frontends()[0], protocol: v1.ProtocolTCP})
		stop := make(chan struct{})
		var readers sync.WaitGroup
		for range 4 {
			readers.Go(func() { readRepeatedly(t, next, packet, stop) })
		}
		func() {
			defer readers.Wait()
			defer close(stop) // also if Apply hangs
			s.apply(t, next)
		}()
	}
}

// readRepeatedly routes a packet with a snapshot again and again, at least twice.
func readRepeatedly(t testing.TB, s proxy.Snapshot, p proxy.Packet, stop <-chan struct{}) {
	before := fmt.Sprint(proxy.Route(s, p))
	for {
		if after := fmt.Sprint(proxy.Route(s, p)); after != before {
			t.Errorf("Route during Apply: got %s, want %s as before", after, before)
			return
		}
		select {
		case <-stop:
			return
		default:
		}
	}
}
