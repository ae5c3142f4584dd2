package backends_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// driver applies snapshots as a [proxy.Runner] does.
type driver struct {
	backend proxy.Backend
	kernel  *fakeKernel
	applied proxy.Snapshot
}

func newDriver(t testing.TB) *driver {
	k := newFakeKernel(t)
	return &driver{kernel: k, backend: backends.New(renderFake, k)}
}

// eachKind runs a test with a target that has transactions, and with one that has none.
func eachKind(t *testing.T, test func(*testing.T, *driver)) {
	for _, single := range []bool{false, true} {
		t.Run(fmt.Sprintf("single=%t", single), func(t *testing.T) {
			d := newDriver(t)
			d.kernel.single = single
			test(t, d)
		})
	}
}

// restart makes a new backend, as a new process would.
func (d *driver) restart() {
	d.backend, d.applied = backends.New(renderFake, d.kernel), proxy.Snapshot{}
}

func (d *driver) apply(ctx context.Context, want proxy.Snapshot) error {
	err := d.backend.Apply(ctx, d.applied, want)
	d.applied = d.applied.Achieved(want, err)
	return err
}

// kernelHolds compares the objects in the kernel with those of a snapshot.
func (d *driver) kernelHolds(t *testing.T, s proxy.Snapshot, when string) {
	t.Helper()
	if want := wanted(s); !maps.Equal(want, d.kernel.objects) { // cmp is slow
		t.Fatalf("%s: objects in the kernel (-want +got):\n%s", when, cmp.Diff(want, d.kernel.objects))
	}
}

// before is what was applied before an Apply of another snapshot, and what the kernel held.
type before struct {
	*driver
	from, to proxy.Snapshot
	objects  map[fakeKey]string
}

func (d *driver) before(to proxy.Snapshot) before {
	return before{d, d.applied, to, maps.Clone(d.kernel.objects)}
}

// check checks an Apply that returned an error, or none: the kernel has all objects of every port that the
// error does not name, and none that it had not before and that neither snapshot needs.
func (b before) check(t *testing.T, err error, when string) {
	t.Helper()
	d, to, before := b.driver, b.to, b.objects
	is, was := wanted(to), wanted(b.from)
	for k, v := range wanted(to.Revert(proxy.Snapshot{}, failedNames(err)...)) {
		if got, exists := d.kernel.objects[k]; !exists || got != v {
			t.Fatalf("%s: %v: got value %q, exists: %t, want %q; error: %v", when, k, got, exists, v, err)
		}
	}
	for k, v := range d.kernel.objects {
		had, existed := before[k]
		old, isOld := was[k]
		new, isNew := is[k]
		if (!existed || had != v) && (!isOld || old != v) && (!isNew || new != v) {
			t.Fatalf("%s: %v: got value %q, want %q as before or %q as it should be", when, k, v, had, new)
		}
	}
	if err := d.kernel.checkReferences(); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
}

// Without faults the kernel has, after each Apply, exactly the rendered objects, also the
// shared ones; and no unchanged object is written.
func TestApplyFollowsHistory(t *testing.T) { eachKind(t, checkFollowsHistory) }

func checkFollowsHistory(t *testing.T, d *driver) {
	r := testenv.Random(t)
	h := newHistory(r)
	for step := range 1500 {
		if r.IntN(50) == 0 {
			d.restart()
		}
		h.step()
		want := h.snapshot()
		if err := d.apply(t.Context(), want); err != nil {
			t.Fatalf("step %d: Apply: got error %v, want none", step, err)
		}
		d.kernelHolds(t, want, fmt.Sprintf("step %d", step))
	}
}

// A port that the kernel refuses is named, and all others are applied; once the kernel
// accepts the port, the next Apply programs it.
func TestApplyIsolatesPoison(t *testing.T) { eachKind(t, checkIsolatesPoison) }

func checkIsolatesPoison(t *testing.T, d *driver) {
	r := testenv.Random(t)
	h := newHistory(r)
	partial, lost := 0, 0
	for step := range 1500 {
		if r.IntN(50) == 0 {
			d.restart()
		}
		d.kernel.poisoned = r.IntN(10) > 0
		if r.IntN(3) > 0 {
			h.step()
		}
		if d.kernel.poisoned {
			h.forget(d.kernel)
		}
		want := h.snapshot()
		b := d.before(want)
		err := d.apply(t.Context(), want)
		if errors.Is(err, proxy.ErrDataplaneLost) {
			// After a failed move between ports, or a change of the node, the next
			// Apply starts from the zero snapshot.
			lost++
			b.from = d.applied
			err = d.apply(t.Context(), want)
		}
		var refused []string
		if d.kernel.poisoned {
			refused = poisonedPorts(want)
		}
		if diff := cmp.Diff(refused, failedPorts(err)); diff != "" {
			t.Fatalf("step %d, from the zero snapshot: %t: ports that failed (-want +got):\n%s\nerror: %v", step, b.from.IsZero(), diff, err)
		}
		if err != nil && len(refused) == 0 {
			t.Fatalf("step %d: Apply: got error %v, want none", step, err)
		}
		if len(refused) > 0 {
			partial++
		}
		b.check(t, err, fmt.Sprintf("step %d", step))
	}
	if partial < 50 || lost > 500 {
		t.Errorf("got %d steps with refused ports and %d from the zero snapshot, want at least 50 and at most 500", partial, lost)
	}
}

// forget removes the ports with poison if the kernel has objects with poison, from a time
// when it was not poisoned: it refuses no objects that exist already.
func (h *history) forget(k *fakeKernel) {
	for key := range k.objects {
		if !poisonous(key) {
			continue
		}
		for i, p := range h.ports {
			if p != nil && slices.ContainsFunc(p.Cluster, func(e *endpoints.Endpoint) bool { return e.Addr.Port() == poisonPort }) {
				h.ports[i] = nil
			}
		}
		return
	}
}

// Once nothing fails any more, the kernel has the rendered objects, whatever failed before;
// and an Apply that returns no error has done everything.
func TestApplyConvergesUnderFaults(t *testing.T) { eachKind(t, checkConvergesUnderFaults) }

func checkConvergesUnderFaults(t *testing.T, d *driver) {
	r := testenv.Random(t)
	h := newHistory(r)
	faults := true
	d.kernel.fail = func() error {
		switch {
		case !faults || r.IntN(8) > 0:
			return nil
		case r.IntN(4) == 0:
			return fmt.Errorf("%w: changed by another program", backends.ErrConflict)
		}
		return errFault
	}
	d.kernel.lose = func(ops int) (int, bool) { return r.IntN(ops + 1), faults && r.IntN(20) == 0 }
	for step := range 1000 {
		h.step()
		want := h.snapshot()
		d.kernel.poisoned = r.IntN(2) == 0
		ctx, cancel := context.WithCancel(t.Context())
		d.kernel.committed = func() {
			if faults && r.IntN(20) == 0 {
				cancel()
			}
		}
		b := d.before(want)
		if err := d.apply(ctx, want); err == nil {
			b.check(t, nil, fmt.Sprintf("step %d", step))
		}
		cancel()
		if step%10 > 0 {
			continue
		}
		faults, d.kernel.poisoned = false, false
		d.converge(t, want, step)
		faults = true
	}
}

// converge applies twice at most: the first Apply may find out that the state is lost, and
// the second one repairs it.
func (d *driver) converge(t *testing.T, want proxy.Snapshot, step int) {
	t.Helper()
	var errs []error
	for range 2 {
		err := d.apply(t.Context(), want)
		if err == nil {
			d.kernelHolds(t, want, fmt.Sprintf("step %d, after the faults", step))
			return
		}
		errs = append(errs, err)
	}
	t.Fatalf("step %d: two Applies without faults: got errors, want success:\n%v", step, errors.Join(errs...))
}

// Apply adopts or replaces whatever an earlier process has left.
func TestApplyAdoptsLeftovers(t *testing.T) {
	r := testenv.Random(t)
	for round := range 300 {
		d := newDriver(t)
		h := newHistory(r)
		for range 30 {
			h.step()
		}
		for k, v := range wanted(h.snapshot()) {
			switch r.IntN(10) {
			case 0: // missing
			case 1:
				d.kernel.objects[k] = "in a state that no value describes"
			default:
				d.kernel.objects[k] = v
			}
		}
		d.kernel.objects[fakeKey{frontendKind, frontendAddr(r.IntN(16)).String(), ""}] = "from an earlier process"
		d.kernel.objects[fakeKey{pickerKind, "from an earlier process", ""}] = ""
		d.kernel.makeConsistent()
		h.step()
		want := h.snapshot()
		if err := d.apply(t.Context(), want); err != nil {
			t.Fatalf("round %d: Apply: got error %v, want none", round, err)
		}
		d.kernelHolds(t, want, fmt.Sprintf("round %d", round))

		commits := d.kernel.commits
		d.restart()
		if err := d.apply(t.Context(), want); err != nil {
			t.Fatalf("round %d: Apply after a restart: got error %v, want none", round, err)
		}
		if got := d.kernel.commits - commits; got != 0 {
			t.Fatalf("round %d: restart without changes: got %d commits, want 0", round, got)
		}
	}
}
