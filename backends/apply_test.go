package backends_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// port makes service port i with frontends and endpoints by their numbers.
func port(i int, frontends, hosts []int) *proxy.ServicePort {
	p := &proxy.ServicePort{Name: portName(i)}
	for _, f := range frontends {
		p.Frontends = append(p.Frontends, proxy.Frontend{Addr: frontendAddr(f)})
	}
	for _, e := range hosts {
		p.Cluster = append(p.Cluster, &endpoints.Endpoint{Addr: endpointAddr(e, 8080)})
	}
	return p
}

func inZone(zone string, ports ...*proxy.ServicePort) proxy.Snapshot {
	return proxy.NewSnapshot(&proxy.Node{Zone: zone}, ports...)
}

// mustApply brings the kernel to a snapshot.
func (d *driver) mustApply(t *testing.T, s proxy.Snapshot) {
	t.Helper()
	if err := d.apply(t.Context(), s); err != nil {
		t.Fatalf("Apply: got error %v, want none", err)
	}
	d.kernelHolds(t, s, "after Apply")
}

func TestApplyWithNothingToDo(t *testing.T) {
	d := newDriver(t)
	s := inZone("a", port(0, []int{0}, []int{0, 1}), port(1, []int{1}, []int{1, 2}))
	d.mustApply(t, s)
	lists, commits := d.kernel.lists, d.kernel.commits
	ctx := t.Context()
	allocs := testing.AllocsPerRun(100, func() {
		if err := d.backend.Apply(ctx, s, s); err != nil {
			t.Error(err)
		}
	})
	if allocs != 0 {
		t.Errorf("Apply with nothing to do allocates %v times, want 0", allocs)
	}
	if got := d.kernel.lists - lists; got != 0 {
		t.Errorf("Apply with nothing to do lists %d times, want 0", got)
	}
	equal := inZone("a", port(0, []int{0}, []int{0, 1}), port(1, []int{1}, []int{1, 2}))
	d.mustApply(t, equal)
	if got := d.kernel.commits - commits; got != 0 {
		t.Errorf("Apply of nothing and of equal ports commits %d times, want 0", got)
	}
}

// What a change writes does not depend on how many ports there are.
func TestApplyIsEconomical(t *testing.T) {
	var costs []uint64
	for _, ports := range []int{3, 300} {
		var all []*proxy.ServicePort
		for i := range ports {
			all = append(all, port(i, []int{i}, []int{i, i + 1, 500}))
		}
		d := newDriver(t)
		d.mustApply(t, inZone("a", all...))
		counter, ok := d.backend.(proxy.OperationCounter)
		if !ok {
			t.Fatal("the backend does not count its operations")
		}
		before, loads := counter.Operations(), d.kernel.commits
		all[1] = port(1, []int{1}, []int{1, 2, 501})
		d.mustApply(t, inZone("a", all...))
		costs = append(costs, counter.Operations()-before)
		if changes := d.kernel.commits - loads; loads != 1 || changes != 1 {
			t.Errorf("%d ports took %d commits, and a change of one took %d, want one each", ports, loads, changes)
		}
	}
	// One slot less and one more, and one host more.
	if want := []uint64{3, 3}; !cmp.Equal(costs, want) {
		t.Errorf("operations for one endpoint replaced, among 3 and 300 ports: got %v, want %v", costs, want)
	}
}

func TestApplyMovesObjectsBetweenPorts(t *testing.T) {
	d := newDriver(t)
	d.mustApply(t, inZone("a", port(0, []int{0, 1}, []int{0, 1}), port(1, nil, []int{0})))
	for _, s := range []proxy.Snapshot{
		inZone("a", port(0, []int{0}, []int{0, 1}), port(1, []int{1}, []int{0})),
		inZone("a", port(0, []int{1}, []int{0, 1}), port(1, []int{0}, []int{0})),
		inZone("a", port(1, []int{0, 1}, []int{0, 1})),
		inZone("a", port(0, []int{0, 1}, []int{0, 1})),
	} {
		commits := d.kernel.commits
		d.mustApply(t, s)
		if got := d.kernel.commits - commits; got > 1 {
			t.Errorf("moving took %d commits, want at most 1", got)
		}
	}
}

// A move that cannot be done as a whole is not done in parts, in which the old
// owner takes away what the new one has just got.
func TestApplyMovesDespitePoison(t *testing.T) {
	d := newDriver(t)
	d.kernel.poisoned = true
	d.mustApply(t, inZone("a", port(5, []int{0}, []int{0})))
	bad := port(3, []int{3}, nil)
	bad.Cluster = []*endpoints.Endpoint{{Addr: endpointAddr(0, poisonPort)}}
	want := inZone("a", port(0, []int{0}, []int{0}), bad, port(5, nil, []int{0}))
	if err := d.apply(t.Context(), want); !errors.Is(err, proxy.ErrDataplaneLost) {
		t.Fatalf("Apply: got error %v, want %v", err, proxy.ErrDataplaneLost)
	}
	err := d.apply(t.Context(), want)
	if diff := cmp.Diff([]string{bad.Name.String()}, failedPorts(err)); diff != "" {
		t.Errorf("ports that failed (-want +got):\n%s", diff)
	}
	d.kernelHolds(t, d.applied, "after the repair")
}

// Ports that failed while the node changed are as they were for the other node.
// Nobody may take them for up to date.
func TestApplyOfAnotherNodeDespitePoison(t *testing.T) {
	d := newDriver(t)
	bad := port(1, []int{1}, nil)
	bad.Cluster = []*endpoints.Endpoint{{Addr: endpointAddr(0, poisonPort)}}
	d.mustApply(t, inZone("a", port(0, []int{0}, []int{0}), bad))
	d.kernel.poisoned = true
	want := inZone("b", port(0, []int{0}, []int{0}), bad)
	err := d.apply(t.Context(), want)
	if diff := cmp.Diff([]string{bad.Name.String()}, failedPorts(err)); diff != "" {
		t.Errorf("ports that failed (-want +got):\n%s", diff)
	}
	if !errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("Apply: got error %v, want also %v", err, proxy.ErrDataplaneLost)
	}
	d.kernel.poisoned = false
	d.mustApply(t, want)
}

// After an Apply that ended in the middle, nothing is known.
func TestApplyCancelledHalfWay(t *testing.T) {
	d := newDriver(t)
	d.kernel.poisoned = true
	first := inZone("a", port(0, []int{0}, []int{0}))
	d.mustApply(t, first)
	bad := port(3, []int{3}, nil)
	bad.Cluster = []*endpoints.Endpoint{{Addr: endpointAddr(0, poisonPort)}}
	want := inZone("a", port(0, []int{0}, []int{0, 1}), port(1, []int{1}, []int{0}), bad)
	ctx, cancel := context.WithCancel(t.Context())
	d.kernel.committed = cancel
	if err := d.apply(ctx, want); err == nil || len(failedPorts(err)) > 0 {
		t.Fatalf("Apply under a context that ends meanwhile: got error %v, want one that names no ports", err)
	}
	if cmp.Equal(wanted(first), d.kernel.objects) {
		t.Fatal("nothing was committed before the context ended; the test shows nothing")
	}
	d.kernel.committed, d.kernel.poisoned = nil, false
	d.mustApply(t, first)
	d.mustApply(t, want)
}

func TestApplyReportsLostDataplane(t *testing.T) {
	d := newDriver(t)
	d.mustApply(t, inZone("a", port(0, []int{0}, []int{0, 1})))
	clear(d.kernel.objects)
	want := inZone("a", port(0, []int{0}, []int{0, 2}))
	if err := d.apply(t.Context(), want); !errors.Is(err, proxy.ErrDataplaneLost) || !errors.Is(err, backends.ErrConflict) {
		t.Fatalf("Apply over a kernel that somebody emptied: got error %v, want %v", err, proxy.ErrDataplaneLost)
	}
	d.mustApply(t, want)
}

// What the static objects need cannot be blamed on a port.
func TestApplyReportsFailureOfStaticObjects(t *testing.T) {
	d := newDriver(t)
	calls := 0
	d.kernel.fail = func() error {
		if calls++; calls == 1 { // the listing
			return nil
		}
		return errFault
	}
	err := d.apply(t.Context(), inZone("a", port(0, []int{0}, []int{0})))
	if !errors.Is(err, errFault) || len(failedPorts(err)) > 0 {
		t.Errorf("Apply: got error %v, want %v and no ports named", err, errFault)
	}
}

// A big first load goes into several commits, each of which leaves whole
// services behind.
func TestApplyLoadsInChunks(t *testing.T) {
	const ports, hosts = 1500, 20
	var all []*proxy.ServicePort
	for i := range ports {
		p := &proxy.ServicePort{Name: portName(i), Frontends: []proxy.Frontend{{Addr: frontendAddr(i)}}}
		for e := range hosts {
			p.Cluster = append(p.Cluster, &endpoints.Endpoint{Addr: endpointAddr(e, 8080)})
		}
		all = append(all, p)
	}
	d := newDriver(t)
	d.kernel.committed = func() {
		slots, frontends := map[string]int{}, 0
		for k := range d.kernel.objects {
			switch k.kind {
			case slotKind:
				slots[k.name]++
			case frontendKind:
				frontends++
			}
		}
		if frontends == 0 || len(slots) != frontends {
			t.Errorf("after commit %d there are %d frontends and slots of %d", d.kernel.commits, frontends, len(slots))
		}
		for name, n := range slots {
			if n != hosts {
				t.Errorf("after commit %d, frontend %s has %d slots, want %d", d.kernel.commits, name, n, hosts)
			}
		}
	}
	d.mustApply(t, inZone("a", all...))
	if d.kernel.commits < 2 || d.kernel.commits > 16 {
		t.Errorf("%d slots were loaded in %d commits, want 2 to 16", ports*hosts, d.kernel.commits)
	}
}

// cleaningKernel can clean up without looking.
type cleaningKernel struct{ *fakeKernel }

func (k cleaningKernel) Cleanup(context.Context) error {
	clear(k.objects)
	return nil
}

func TestCleanup(t *testing.T) {
	s := inZone("a", port(0, []int{0}, []int{0, 1}))
	t.Run("by listing", func(t *testing.T) {
		d := newDriver(t)
		d.mustApply(t, s)
		d.restart()
		testCleanup(t, d, s)
	})
	t.Run("by itself", func(t *testing.T) {
		k := newFakeKernel(t)
		d := &driver{backend: backends.New(renderFake, cleaningKernel{k}), kernel: k}
		d.mustApply(t, s)
		lists := k.lists
		testCleanup(t, d, s)
		if got := k.lists - lists; got != 1 {
			t.Errorf("%d listings, want only that of the Apply that came after", got)
		}
	})
	t.Run("that fails", func(t *testing.T) {
		d := newDriver(t)
		d.mustApply(t, s)
		d.kernel.fail = func() error { return errFault }
		if err := d.backend.Cleanup(t.Context()); !errors.Is(err, errFault) {
			t.Errorf("Cleanup: got error %v, want %v", err, errFault)
		}
	})
}

func testCleanup(t *testing.T, d *driver, s proxy.Snapshot) {
	t.Helper()
	for range 2 { // the second time there is nothing to do
		if err := d.backend.Cleanup(t.Context()); err != nil {
			t.Fatalf("Cleanup: got error %v, want none", err)
		}
		if len(d.kernel.objects) > 0 {
			t.Fatalf("after Cleanup this is left: %v", d.kernel.objects)
		}
	}
	// Whoever says that s is there is wrong now, and gets it nevertheless.
	if err := d.backend.Apply(t.Context(), s, s); err != nil {
		t.Fatalf("Apply after Cleanup: got error %v, want none", err)
	}
	d.kernelHolds(t, s, "Apply after Cleanup")
}

func TestOpKindString(t *testing.T) {
	got := fmt.Sprint(backends.Add, backends.Replace, backends.Remove)
	if want := "add replace remove"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What one port has taken over of an earlier process, no other one gets, whose
// claim is a mistake.
func TestApplyAdoptsForOneOwner(t *testing.T) {
	d := newDriver(t)
	rightful := inZone("a", port(0, []int{0}, []int{0, 1}))
	d.mustApply(t, rightful)
	d.restart()
	wrong := port(1, []int{0}, []int{2})
	err := d.apply(t.Context(), inZone("a", port(0, []int{0}, []int{0, 1}), wrong))
	if diff := cmp.Diff([]string{wrong.Name.String()}, failedPorts(err)); diff != "" {
		t.Errorf("ports that failed (-want +got):\n%s", diff)
	}
	d.kernelHolds(t, rightful, "after the mistake")
}

// Where memory is short, a look at everything takes down nothing that serves and could not
// be changed; a port of which nothing is there yet is named, and keeps nothing back.
func TestApplyTakesNothingDownForWantOfMemory(t *testing.T) {
	d := newDriver(t)
	d.mustApply(t, inZone("a", port(0, []int{0}, []int{0, 1}), port(1, []int{1}, []int{1, 2}), port(2, []int{2}, []int{3})))
	before := maps.Clone(d.kernel.objects)
	short := func(commits int) {
		calls := 0 // of which the first one lists
		d.kernel.fail = func() error {
			if calls++; calls > 1 && calls <= 1+commits {
				return fmt.Errorf("%w: no memory", backends.ErrExhausted)
			}
			return nil
		}
	}
	another := func() proxy.Backend { return backends.New(renderFake, backends.Target[fakeKey, string](d.kernel)) }
	grown := inZone("a", port(0, []int{0}, []int{0, 1}), port(1, []int{1}, []int{1, 2, 4}))
	short(3) // with all ports, with two, and with the one that is to change
	err := another().Apply(t.Context(), proxy.Snapshot{}, grown)
	if !errors.Is(err, backends.ErrExhausted) || errors.As(err, new(proxy.PortErrors)) {
		t.Errorf("got error %v, want %v and nobody blamed", err, backends.ErrExhausted)
	}
	if diff := cmp.Diff(before, d.kernel.objects); diff != "" {
		t.Errorf("what serves (-before +after):\n%s", diff)
	}
	short(0)
	if err := another().Apply(t.Context(), proxy.Snapshot{}, grown); err != nil {
		t.Error(err)
	}
	d.kernelHolds(t, grown, "when there is memory again")

	short(3)
	err = another().Apply(t.Context(), proxy.Snapshot{}, inZone("a", port(0, []int{0}, []int{0, 1}), port(3, []int{3}, []int{5})))
	if diff := cmp.Diff([]string{portName(3).String()}, failedPorts(err)); diff != "" {
		t.Errorf("ports that failed (-want +got):\n%s", diff)
	}
	d.kernelHolds(t, inZone("a", port(0, []int{0}, []int{0, 1})), "where a new port failed")
}
