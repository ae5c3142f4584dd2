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

// mustApply applies a snapshot and checks the objects in the kernel.
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
		t.Errorf("Apply with nothing to do: got %v allocations, want 0", allocs)
	}
	if got := d.kernel.lists - lists; got != 0 {
		t.Errorf("Apply with nothing to do: got %d lists, want 0", got)
	}
	equal := inZone("a", port(0, []int{0}, []int{0, 1}), port(1, []int{1}, []int{1, 2}))
	d.mustApply(t, equal)
	if got := d.kernel.commits - commits; got != 0 {
		t.Errorf("Apply of nothing and of equal ports: got %d commits, want 0", got)
	}
}

// The number of operations of a change does not depend on the number of ports.
func TestApplyIsEconomical(t *testing.T) {
	var costs []uint64
	for _, ports := range []int{3, 300} {
		var all []*proxy.ServicePort
		for i := range ports {
			all = append(all, port(i, []int{i}, []int{i, i + 1, 500}))
		}
		d := newDriver(t)
		d.mustApply(t, inZone("a", all...))
		operations := d.backend.Abilities().Operations
		before, loads := operations(), d.kernel.commits
		all[1] = port(1, []int{1}, []int{1, 2, 501})
		d.mustApply(t, inZone("a", all...))
		costs = append(costs, operations()-before)
		if changes := d.kernel.commits - loads; loads != 1 || changes != 1 {
			t.Errorf("%d ports: got %d commits, and %d for a change of one port, want one each", ports, loads, changes)
		}
		d.kernel.fail, before = func() error { return errFault }, operations()
		if err := d.apply(t.Context(), inZone("a")); err == nil || operations() != before {
			t.Errorf("a change that fails: got error %v, and %d operations, want an error and none", err, operations()-before)
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
			t.Errorf("move: got %d commits, want at most 1", got)
		}
	}
}

// A move that fails as a whole is not committed in parts, in which the change of the old
// owner would remove the object of the new one.
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

// Ports that fail while the node changes are as they were for the former node. The error
// must not report them as unchanged.
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

// After an Apply whose context ended between two commits, the state is unknown.
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
		t.Fatalf("Apply with a context that ends meanwhile: got error %v, want one that names no ports", err)
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
		t.Fatalf("Apply after another program removed all objects: got error %v, want %v", err, proxy.ErrDataplaneLost)
	}
	d.mustApply(t, want)
}

// A failure of the static objects names no port.
func TestApplyReportsFailureOfStaticObjects(t *testing.T) {
	d := newDriver(t)
	calls := 0
	d.kernel.fail = func() error {
		if calls++; calls == 1 { // List
			return nil
		}
		return errFault
	}
	err := d.apply(t.Context(), inZone("a", port(0, []int{0}, []int{0})))
	if !errors.Is(err, errFault) || len(failedPorts(err)) > 0 {
		t.Errorf("Apply: got error %v, want %v and no ports named", err, errFault)
	}
}

// A large full apply is divided into several commits, each of which makes whole service
// ports.
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
			t.Errorf("after commit %d: got %d frontends and slots of %d, want equal numbers", d.kernel.commits, frontends, len(slots))
		}
		for name, n := range slots {
			if n != hosts {
				t.Errorf("after commit %d: frontend %s: got %d slots, want %d", d.kernel.commits, name, n, hosts)
			}
		}
	}
	d.mustApply(t, inZone("a", all...))
	if d.kernel.commits < 2 || d.kernel.commits > 16 {
		t.Errorf("%d slots: got %d commits, want 2 to 16", ports*hosts, d.kernel.commits)
	}
}

// However large a first load is, it goes into no more than 16 commits.
func TestApplyLoadsInFewChunks(t *testing.T) {
	many := make([]*endpoints.Endpoint, 20_000) // which are counted, and not rendered
	for i := range many {
		many[i] = &endpoints.Endpoint{Addr: endpointAddr(i, 8080)}
	}
	var all []*proxy.ServicePort
	for i := range 64 {
		p := port(i, []int{i}, []int{i})
		p.Local = many
		all = append(all, p)
	}
	d := newDriver(t)
	d.mustApply(t, inZone("a", all...))
	if d.kernel.commits < 8 || d.kernel.commits > 16 {
		t.Errorf("there were %d commits, want 8 to 16", d.kernel.commits)
	}
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
		k.able.Cleanup = func(context.Context) error { clear(k.objects); return nil }
		d := &driver{backend: backends.New(renderFake, k), kernel: k}
		d.mustApply(t, s)
		lists := k.lists
		testCleanup(t, d, s)
		if got := k.lists - lists; got != 1 {
			t.Errorf("got %d lists, want 1, by the Apply after Cleanup", got)
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
			t.Fatalf("after Cleanup: got objects %v, want none", d.kernel.objects)
		}
	}
	// The old snapshot of this Apply is wrong now: Apply must list the objects.
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

// An object of an earlier process that one port has adopted is not adopted by another port
// that claims it by mistake.
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

// A full apply keeps the objects of a port that fails, and what they refer to, and removes all other
// objects that nothing needs. The next Apply makes or removes them.
func TestApplyKeepsWhatFailed(t *testing.T) {
	d := newDriver(t)
	d.mustApply(t, inZone("a", port(0, []int{0}, []int{0, 1}), port(1, []int{1}, []int{1, 2}), port(2, []int{2}, []int{3})))
	before := maps.Clone(d.kernel.objects)
	maps.DeleteFunc(before, func(k fakeKey, _ string) bool {
		return k.name == frontendAddr(2).String() || k.name == endpointAddr(3, 0).Addr().String() || k == fakeKey{pickerKind, "1", ""}
	})
	d.restart()
	grown := inZone("a", port(0, []int{0}, []int{0, 1}), port(1, []int{1}, []int{1, 2, 4}))
	calls := 0 // the first one is List
	d.kernel.fail = func() error {
		if calls++; calls > 1 && calls <= 4 { // with all ports, with two, and with the one that changes
			return errFault
		}
		return nil
	}
	if diff := cmp.Diff([]string{portName(1).String()}, failedPorts(d.apply(t.Context(), grown))); diff != "" {
		t.Errorf("ports that failed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, d.kernel.objects); diff != "" {
		t.Errorf("objects in the kernel (-before +after):\n%s", diff)
	}
	d.kernel.fail = nil
	for _, last := range []proxy.Snapshot{grown, inZone("a", port(0, []int{0}, []int{0, 1}))} {
		d.mustApply(t, last)
	}
}
