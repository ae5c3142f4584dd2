package backendtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// faultInjection stands for Config.Faulty.
const faultInjection Capability = "faults can be injected"

// testLaws holds a backend to what is true of every dataplane, whatever it does
// with packets.
func (c *Config) testLaws(t *testing.T) {
	for _, law := range []struct {
		name  string
		check func(*testing.T, *stage)
		// calm is for laws that count operations.
		calm  bool
		needs Capability
	}{
		{"Idempotence", lawIdempotence, true, ""},
		{"PathIndependence", lawPathIndependence, false, ""},
		{"Adoption", lawAdoption, true, ""},
		{"EstablishedFlows", lawEstablishedFlows, false, LastingConnections},
		{"Economy", lawEconomy, true, ""},
		{"Faults", lawFaults, false, faultInjection},
		{"Cleanup", lawCleanup, true, ""},
		{"Cancellation", lawCancellation, true, ""},
		{"Leaks", lawLeaks, false, ""},
		{"Readers", lawReaders, false, ""},
		{"Repair", lawRepair, true, ""},
		{"Marks", lawMarks, false, ForeignMarks},
		{"HostMarks", lawHostMarks, false, HostMarks},
	} {
		if c.lacks(law.needs) || law.needs == faultInjection && c.Faulty == nil {
			continue
		}
		if c.world.tables != "" && (law.needs == ForeignMarks || law.needs == HostMarks) {
			continue // Those that mark there are others than those of the law.
		}
		c.run(t, "Laws/"+law.name, func(t *testing.T) {
			s := c.setUp(t)
			if law.calm {
				s.calm()
			}
			law.check(t, s)
		})
	}
}

// An Apply that has nothing to do does nothing, whether it knows that or not.
func lawIdempotence(t *testing.T, s *stage) {
	h := s.newHistory(testenv.Random(t), 10)
	for range 5 {
		s.apply(t, h.next(t))
		dump, before := s.dump(t), s.operations(t)
		s.apply(t, h.last)
		if n := s.operations(t) - before; n != 0 {
			t.Errorf("applying the same snapshot again took %d kernel operations, want 0", n)
		}
		s.applied = proxy.Snapshot{}
		s.apply(t, h.last)
		if n := s.operations(t) - before; n != 0 && !s.config.lacks(Adoption) {
			t.Errorf("applying the same snapshot from the zero one took %d kernel operations, want 0", n)
		}
		if diff := cmp.Diff(dump, s.dump(t)); diff != "" {
			t.Fatalf("applying the same snapshot again changed the dataplane (-before +after):\n%s", diff)
		}
	}
}

// Where the dataplane ends does not depend on the way that leads there.
func lawPathIndependence(t *testing.T, s *stage) {
	h := s.newHistory(testenv.Random(t), 10)
	for range 25 {
		s.apply(t, h.next(t))
	}
	s.readable(t)
	s.calm()
	s.wantAsFresh(t, h.last, "the dataplane depends on its history")
}

// wantAsFresh wants the dataplane to be as if the snapshot, which it matches, had been
// applied where nothing was before.
func (s *stage) wantAsFresh(t *testing.T, last proxy.Snapshot, otherwise string) {
	t.Helper()
	have := s.dump(t)
	if err := s.backend.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.restart(t)
	s.apply(t, last)
	if diff := cmp.Diff(s.dump(t), have); diff != "" {
		t.Fatalf("%s (-fresh +have):\n%s", otherwise, diff)
	}
}

// A new process takes over what an earlier one left: an unchanged world without
// a write, another one like a new beginning.
func lawAdoption(t *testing.T, s *stage) {
	h := s.newHistory(testenv.Random(t), 10)
	for range 10 {
		s.apply(t, h.next(t))
	}
	dump := s.dump(t)
	s.restart(t)
	s.apply(t, h.last)
	if n := s.operations(t); n != 0 && !s.config.lacks(Adoption) {
		t.Errorf("taking over an unchanged world took %d kernel operations, want 0", n)
	}
	if diff := cmp.Diff(dump, s.dump(t)); diff != "" {
		t.Fatalf("taking over changed the dataplane (-before +after):\n%s", diff)
	}
	s.restart(t)
	for range 5 {
		h.next(t)
	}
	s.apply(t, h.last)
	s.wantAsFresh(t, h.last, "leftovers of another world show")
}

// A connection that is there goes on, whatever process takes over and whatever
// else changes.
func lawEstablishedFlows(t *testing.T, s *stage) {
	h := s.newHistory(testenv.Random(t), 10)
	steady := &sample{number: 77, endpoints: []sampleEndpoint{{at: atLocal}, {at: atRemote}}}
	o := steady.objects()
	o.handTo(h.tracker)
	s.apply(t, h.next(t))
	for _, from := range []place{atClient, atNode, atOutside} {
		flows, err := s.open(&probe{from: from, protocol: v1.ProtocolTCP, to: steady.frontends()[0], tries: 8})
		if err != nil {
			t.Fatal(err)
		}
		before := askAll(flows)
		for range 5 {
			s.restart(t)
			s.apply(t, h.next(t))
		}
		after := askAll(flows)
		for i := range flows {
			if before[i].outcome != answered || before[i].String() != after[i].String() {
				t.Errorf("from %s: a connection that began as %q went on as %q", from, before[i], after[i])
			}
			flows[i].Close()
		}
	}
}

// What a change costs follows the size of the change, not that of the world. An
// endpoint need not cost anything, where the kernel is not told of endpoints; a Service
// that comes does.
func lawEconomy(t *testing.T, s *stage) {
	const comes = "a Service that comes"
	costs := map[string][]uint64{}
	for _, services := range []int{10, 500} {
		tracker := proxy.NewServiceChangeTracker(nodeOptions())
		for i := range services {
			o := plainSample(i, 0).objects()
			o.handTo(tracker)
		}
		tracker.Synced()
		s.apply(t, nextOf(t, tracker, proxy.Snapshot{}))
		cost := func(what string) {
			before := s.operations(t)
			s.apply(t, nextOf(t, tracker, s.applied))
			costs[what] = append(costs[what], s.operations(t)-before)
		}
		tracker.UpdateEndpointSlice(plainSample(services/2, 1).slice())
		cost("one endpoint replaced")
		o := plainSample(services, 0).objects()
		o.handTo(tracker)
		cost(comes)
		for _, gone := range o.services {
			tracker.DeleteService(types.NamespacedName{Namespace: gone.Namespace, Name: gone.Name})
		}
		cost("a Service that goes")
	}
	for what, n := range costs {
		if n[0] != n[1] || what == comes && n[0] == 0 {
			t.Errorf("%s took %d kernel operations among 10 services and %d among 500, want the same", what, n[0], n[1])
		}
	}
}

// plainSample is a Service with three endpoints that nobody asks, of which the
// last is of a given generation.
func plainSample(number, generation int) *sample {
	s := &sample{number: number}
	for i, gen := range []int{0, 0, generation} {
		s.endpoints = append(s.endpoints, sampleEndpoint{addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(100 + 10*gen + i)})})
	}
	return s
}

func nextOf(t *testing.T, tracker proxy.ServiceChangeTracker, after proxy.Snapshot) proxy.Snapshot {
	t.Helper()
	s, err := tracker.Next(t.Context(), after)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// An Apply whose context has ended says so, and the next one makes up for it.
func lawCancellation(t *testing.T, s *stage) {
	h := s.newHistory(testenv.Random(t), 10)
	s.apply(t, h.next(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for h.last.Generation() == s.applied.Generation() {
		h.next(t)
	}
	if err := s.backend.Apply(ctx, s.applied, h.last); !errors.Is(err, context.Canceled) {
		t.Errorf("Apply under a cancelled context: got error %v, want %v", err, context.Canceled)
	}
	s.applied = proxy.Snapshot{}
	s.apply(t, h.last)
	applied := s.dump(t)
	s.restart(t)
	s.apply(t, h.last)
	if n := s.operations(t); n != 0 && !s.config.lacks(Adoption) {
		t.Errorf("after a cancelled Apply and a good one, %d kernel operations were missing", n)
	}
	if diff := cmp.Diff(applied, s.dump(t)); diff != "" {
		t.Error(diff)
	}
}

// A backend that works on keeps no more open than one that has begun to.
func lawLeaks(t *testing.T, s *stage) {
	h := s.newHistory(testenv.Random(t), 10)
	s.apply(t, h.next(t))
	s.apply(t, h.next(t))
	files, routines := openFiles(t), runtime.NumGoroutine()
	for range 50 {
		s.apply(t, h.next(t))
	}
	var n, m int
	for range 1000 { // what is about to end, such as a process, may take a moment
		if n, m = openFiles(t), runtime.NumGoroutine(); n <= files && m <= routines {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("after 50 more Applies, %d files are open and %d goroutines run, want %d and %d as before", n, m, files, routines)
}

func openFiles(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// A snapshot stays what it is while a backend works with it: anybody may read it
// meanwhile.
func lawReaders(t *testing.T, s *stage) {
	h := s.newHistory(testenv.Random(t), 10)
	for range 10 {
		next := h.next(t)
		packet := s.packet(flight{from: atClient, to: h.samples[0].frontends()[0], protocol: v1.ProtocolTCP})
		stop := make(chan struct{})
		var readers sync.WaitGroup
		for range 4 {
			readers.Go(func() { readOnAndOn(t, next, packet, stop) })
		}
		s.apply(t, next)
		close(stop)
		readers.Wait()
	}
}

// readOnAndOn asks a snapshot the same again and again, at least twice.
func readOnAndOn(t testing.TB, s proxy.Snapshot, p proxy.Packet, stop <-chan struct{}) {
	before := fmt.Sprint(proxy.Route(s, p))
	for {
		if after := fmt.Sprint(proxy.Route(s, p)); after != before {
			t.Errorf("while it is applied, a snapshot routes otherwise: got %s, want %s", after, before)
			return
		}
		select {
		case <-stop:
			return
		default:
		}
	}
}
