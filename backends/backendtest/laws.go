package backendtest

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// LawsConfig is a backend whose laws [RunLaws] checks. Idempotence, Adoption, Economy and Cancellation are skipped
// for a backend without the ability Operations, since they count operations.
type LawsConfig struct {
	// New is as in [Config], and so are Faulty, Dump and Lacks. There is no network namespace: New
	// and Dump are about the same dataplane as long as a test runs.
	New func(testing.TB) proxy.Backend
	// Faulty makes a backend whose commits go through around, which may fail them.
	Faulty func(t testing.TB, around func(commit func() error) error) proxy.Backend
	// Dump returns what the dataplane holds, as text.
	Dump func(testing.TB) string
	// Lacks are the capabilities that the backend does not have.
	Lacks []Capability
	// Damage removes some objects of the dataplane, as other programs do; nil leaves Laws/Repair
	// out.
	Damage func(testing.TB)
	// Unfinished reports whether a backend knows of something that it could not do, and will do in
	// the next Apply from the zero snapshot: until then the dataplane may have more than what
	// errors of Apply imply. Nil if it knows of nothing.
	Unfinished func(proxy.Backend) bool

	course *course
}

// RunLaws runs, as subtests, the laws that need no packets: on any operating system, for a backend of
// a dataplane that is simulated or not. Local endpoints have the addresses of [LocalEndpoints].
func RunLaws(t *testing.T, c LawsConfig) {
	if i := slices.IndexFunc(c.Lacks, func(what Capability) bool { return !known(what) }); i >= 0 {
		t.Fatalf("LawsConfig.Lacks: unknown capability %q", c.Lacks[i])
	}
	way := c.course.orNew()
	for _, law := range []struct {
		name  string
		check func(*testing.T, *subject)
		calm  bool // it counts operations
		skip  bool
	}{
		{"Basics", lawBasics, true, false},
		{"Idempotence", lawIdempotence, true, false},
		{"PathIndependence", lawPathIndependence, false, false},
		{"Adoption", lawAdoption, true, false},
		{"Economy", lawEconomy, true, false},
		{"Faults", lawFaults, false, c.Faulty == nil},
		{"Cancellation", lawCancellation, true, false},
		{"Repair", func(t *testing.T, s *subject) { s.checkRepair(t, func() { c.Damage(t) }) }, true, c.Damage == nil},
		{"Removal", lawRemoval, true, false},
	} {
		if law.skip {
			continue
		}
		if over := way.ended(); over != "" {
			t.Logf("%s: the other laws would tell nothing new, and are left out", over)
			return
		}
		passed := t.Run("Laws/"+law.name, func(t *testing.T) {
			s := c.subject(t, way)
			if law.calm {
				s.calm()
			}
			law.check(t, s)
			s.calm()
			if err := s.cleanUp(t); err != nil {
				t.Error(err)
			}
		})
		if law.name == "Basics" && !passed {
			way.end("Basics failed")
		}
	}
}

// subject returns a new backend with what the laws need.
func (c *LawsConfig) subject(t *testing.T, way *course) *subject {
	t.Helper()
	s := &subject{
		course:  way,
		faults:  &faults{random: testenv.Random(t), percent: faultShare},
		lacking: func(what Capability) bool { return slices.Contains(c.Lacks, what) },
		dump:    c.Dump, unfinished: c.Unfinished,
	}
	s.renew = func(t testing.TB) proxy.Backend {
		if c.Faulty != nil {
			return c.Faulty(t, s.faults.around)
		}
		return c.New(t)
	}
	s.track = func() tracking { return proxy.NewServiceChangeTracker(nodeOptions()) }
	t.Cleanup(func() { s.close(t) })
	s.restart(t)
	return s
}

// LocalEndpoints returns the addresses of the endpoints of this node that the Services of [RunLaws]
// have, of both families.
func LocalEndpoints() (all []netip.Addr) {
	for _, s := range cluster.Hosts() {
		if s.Name == cluster.Node || s.Name == cluster.Local || s.Name == cluster.Local2 {
			all = append(all, s.Addrs...)
		}
	}
	for generation := range 2 {
		for _, e := range plainSample(0, generation).Endpoints {
			if !slices.Contains(all, e.Addr) {
				all = append(all, e.Addr, cluster.IPv6Of(e.Addr))
			}
		}
	}
	return all
}

// An Apply of a Service programs something.
func lawBasics(t *testing.T, s *subject) {
	before := s.dump(t)
	tracker := s.track()
	o := plainSample(1, 0).Objects()
	o.HandTo(tracker)
	tracker.Synced()
	next := snapshots.Next(t, tracker, proxy.Snapshot{})
	s.apply(t, next)
	if after := s.dump(t); after == before {
		t.Errorf("Apply of a Service at %v with 3 endpoints: got no error and the same dump as before, want the Service in it:\n%s",
			plainSample(1, 0).ClusterIP(), after)
	}
}

// An Apply without changes does nothing, also from the zero snapshot.
func lawIdempotence(t *testing.T, s *subject) {
	h := s.newHistory(testenv.Random(t), 10)
	for range 5 {
		s.apply(t, h.next(t))
		dump, before := s.dump(t), s.operations(t)
		s.apply(t, h.last)
		if n := s.operations(t) - before; n != 0 {
			t.Errorf("the same snapshot again: got %d kernel operations, want 0", n)
		}
		s.applied = proxy.Snapshot{}
		s.apply(t, h.last)
		if n := s.operations(t) - before; n != 0 && !s.lacking(Adoption) {
			t.Errorf("the same snapshot from the zero one: got %d kernel operations, want 0", n)
		}
		if diff := cmp.Diff(dump, s.dump(t)); diff != "" {
			t.Fatalf("the same snapshot again: dataplane (-before +after):\n%s", diff)
		}
	}
}

// The dataplane depends on the last snapshot alone, not on earlier ones.
func lawPathIndependence(t *testing.T, s *subject) {
	h := s.newHistory(testenv.Random(t), 10)
	for range 25 {
		s.apply(t, h.next(t))
	}
	if s.verify != nil {
		s.verify(t)
	}
	s.calm()
	s.wantAsFresh(t, h.last, "after many changes: dataplane")
}

// wantAsFresh checks that the dataplane is the same as if the last snapshot had been
// applied to an empty one.
func (s *subject) wantAsFresh(t *testing.T, last proxy.Snapshot, what string) {
	t.Helper()
	s.finish(t)
	have := s.dump(t)
	testenv.NoError(t, s.cleanUp(t))
	s.restart(t)
	s.apply(t, last)
	if diff := cmp.Diff(s.dump(t), have); diff != "" {
		t.Fatalf("%s (-fresh +have):\n%s", what, diff)
	}
}

// A new process adopts the objects of an earlier one: without a write if nothing has
// changed, otherwise with the same result as from an empty dataplane.
func lawAdoption(t *testing.T, s *subject) {
	h := s.newHistory(testenv.Random(t), 10)
	for range 10 {
		s.apply(t, h.next(t))
	}
	dump := s.dump(t)
	s.restart(t)
	s.apply(t, h.last)
	if n := s.operations(t); n != 0 && !s.lacking(Adoption) {
		t.Errorf("restart without changes: got %d kernel operations, want 0", n)
	}
	if diff := cmp.Diff(dump, s.dump(t)); diff != "" {
		t.Fatalf("restart without changes: dataplane (-before +after):\n%s", diff)
	}
	s.restart(t)
	for range 5 {
		h.next(t)
	}
	s.apply(t, h.last)
	s.wantAsFresh(t, h.last, "restart after changes: dataplane")
}

// The number of operations of a change depends on the size of the change, not on the number
// of Services. A changed endpoint may need none, if the kernel has no objects of endpoints; a
// new Service does need some.
func lawEconomy(t *testing.T, s *subject) {
	const newService = "a new Service"
	costs, many := map[string][]uint64{}, testenv.Rounds(500)
	for _, services := range []int{10, many} {
		tracker := proxy.NewServiceChangeTracker(nodeOptions())
		for i := range services {
			o := plainSample(i, 0).Objects()
			o.HandTo(tracker)
		}
		tracker.Synced()
		s.apply(t, snapshots.Next(t, tracker, proxy.Snapshot{}))
		cost := func(what string) {
			before := s.operations(t)
			s.apply(t, snapshots.Next(t, tracker, s.applied))
			costs[what] = append(costs[what], s.operations(t)-before)
		}
		tracker.UpdateEndpointSlice(plainSample(services/2, 1).Objects().Slices[0])
		cost("one endpoint replaced")
		o := plainSample(services, 0).Objects()
		o.HandTo(tracker)
		cost(newService)
		for _, gone := range o.Services {
			tracker.DeleteService(types.NamespacedName{Namespace: gone.Namespace, Name: gone.Name})
		}
		cost("a deleted Service")
	}
	for what, n := range costs {
		switch {
		case what == newService && n[0] == 0:
			t.Errorf("%s: got 0 kernel operations, want some", what)
		case n[0] != n[1]:
			t.Errorf("%s: got %d kernel operations among 10 Services and %d among %d, want the same", what, n[0], n[1], many)
		}
	}
}

// plainSample is a Service with three endpoints without servers, of which the last one has
// an address that depends on generation.
func plainSample(number, generation int) *cluster.Sample {
	s := &cluster.Sample{Number: number}
	for i, gen := range []int{0, 0, generation} {
		s.Endpoints = append(s.Endpoints, cluster.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(100 + 10*gen + i)})})
	}
	return s
}

// An Apply whose context has ended returns its error, and the next Apply succeeds.
func lawCancellation(t *testing.T, s *subject) {
	h := s.newHistory(testenv.Random(t), 10)
	s.apply(t, h.next(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for h.last.Generation() == s.applied.Generation() {
		h.next(t)
	}
	err := s.course.call(t, "Apply with a cancelled context", s.patienceFor(h.last), func(context.Context) error {
		return s.backend.Apply(ctx, s.applied, h.last)
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Apply with a cancelled context: got error %v, want %v", err, context.Canceled)
	}
	s.applied = proxy.Snapshot{}
	s.apply(t, h.last)
	applied := s.dump(t)
	s.restart(t)
	s.apply(t, h.last)
	if n := s.operations(t); n != 0 && !s.lacking(Adoption) {
		t.Errorf("after a cancelled Apply and a good one, restart: got %d kernel operations, want 0", n)
	}
	if diff := cmp.Diff(applied, s.dump(t)); diff != "" {
		t.Error(diff)
	}
}

// checkRepair checks that an Apply from the zero snapshot repairs the dataplane after damage has
// removed some of its objects.
func (s *subject) checkRepair(t *testing.T, damage func()) {
	t.Helper()
	h := s.newHistory(testenv.Random(t), 10)
	for range 5 {
		s.apply(t, h.next(t))
	}
	want := s.dump(t)
	damage()
	if s.dump(t) == want {
		t.Fatal("no object was removed, so the test shows nothing")
	}
	s.applied = proxy.Snapshot{}
	s.apply(t, h.last)
	if diff := cmp.Diff(want, s.dump(t)); diff != "" {
		t.Errorf("dataplane (-before +after the repair):\n%s", diff)
	}
}

// program applies snapshots until an object is programmed. At first, all Services may be without endpoints.
func (s *subject) program(t *testing.T, h *history, empty string) {
	t.Helper()
	for n := range 30 {
		s.apply(t, h.next(t))
		if n >= 2 && s.dump(t) != empty {
			return
		}
	}
	t.Fatal("no object was programmed, so the test shows nothing")
}

// Cleanup, also by a new process, removes everything; twice is no error.
func lawRemoval(t *testing.T, s *subject) {
	empty := s.dump(t)
	h := s.newHistory(testenv.Random(t), 10)
	for _, again := range []bool{false, true} {
		s.program(t, h, empty)
		if again {
			s.restart(t)
		}
		for range 2 {
			if err := s.cleanUp(t); err != nil {
				t.Errorf("Cleanup: %v", err)
			}
			if diff := cmp.Diff(empty, s.dump(t)); diff != "" {
				t.Errorf("after Cleanup: dataplane (-before +after):\n%s", diff)
			}
		}
		s.applied = proxy.Snapshot{}
	}
}
