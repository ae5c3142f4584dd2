package backends_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Without abilities of its target, the backend has none but that it counts the committed operations.
func TestTargetWithoutAbilities(t *testing.T) {
	b := backends.New(renderFake, newFakeKernel(t))
	testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, inZone("a")))
	if a, want := b.Abilities(), uint64(len(wanted(inZone("a")))); a.Operations() != want {
		t.Errorf("got %d operations, want %d", a.Operations(), want)
	}
	if got := namesOf(b.Abilities()); !slices.Equal(got, []string{"Operations"}) {
		t.Errorf("got abilities %q, want Operations alone", got)
	}
}

var errClosing = errors.New("closing")

// Close closes the target, if it can be closed; Apply and Cleanup do not.
func TestClose(t *testing.T) {
	k, closed := newFakeKernel(t), 0
	if err := backends.New(renderFake, k).Close(); err != nil {
		t.Errorf("Close with a target without Close: got error %v, want none", err)
	}
	k.able.Close = func() error { closed++; return errClosing }
	b := backends.New(renderFake, k)
	err := errors.Join(b.Apply(t.Context(), proxy.Snapshot{}, inZone("a")), b.Cleanup(t.Context()))
	if err != nil || closed != 0 {
		t.Errorf("Apply and Cleanup: got error %v, closed %d times, want none and never", err, closed)
	}
	if err := b.Close(); !errors.Is(err, errClosing) || closed != 1 {
		t.Errorf("Close: got error %v, closed the target %d times, want %v and once", err, closed, errClosing)
	}
}

// differences renders the differences that likes selects, and counts its calls.
type differences struct {
	likes func() bool
	asked int
}

func (d *differences) render(env backends.Env, c proxy.Change, removed, added []fakeObject) (r, a []fakeObject, ok bool) {
	d.asked++
	old, new := objectsOf(env.Node, c.Old), objectsOf(env.Node, c.New)
	gone, come := without(old, new), without(new, old)
	changes := slices.ContainsFunc(gone, func(o fakeObject) bool {
		return slices.ContainsFunc(come, func(n fakeObject) bool { return n.Key == o.Key })
	})
	return append(removed, gone...), append(added, come...), !changes && d.likes()
}

// without returns the objects of a list without those of another one, as often as it has them.
func without(list, other []fakeObject) []fakeObject {
	other = slices.Clone(other)
	return slices.DeleteFunc(slices.Clone(list), func(o fakeObject) bool {
		i := slices.IndexFunc(other, func(x fakeObject) bool { return x.Key == o.Key && x.Value == o.Value })
		if i >= 0 {
			other = slices.Delete(other, i, i+1)
		}
		return i >= 0
	})
}

// RenderDiff renders changes of ports with one node; if it reports false, both ports are rendered in
// full.
func TestApplyFollowsHistoryByDifferences(t *testing.T) {
	r, k := testenv.Random(t), newFakeKernel(t)
	by := differences{likes: func() bool { return r.IntN(4) > 0 }}
	k.able.RenderDiff = by.render
	d, h := &driver{backend: backends.New(renderFake, k), kernel: k}, newHistory(r)
	for step := range 1000 {
		h.step()
		want := h.snapshot()
		if err := d.apply(t.Context(), want); err != nil {
			t.Fatalf("step %d: Apply: got error %v, want none", step, err)
		}
		d.kernelHolds(t, want, fmt.Sprintf("step %d", step))
	}
	if by.asked == 0 {
		t.Error("RenderDiff was not called, so the test shows nothing")
	}
}

// A List that fails is no empty list: without a list of the objects, nothing is committed.
func TestApplyReportsListsThatFail(t *testing.T) {
	d := newDriver(t)
	d.kernel.fail = func() error { return errFault }
	if err := d.apply(t.Context(), inZone("a", port(0, []int{0}, []int{0}))); !errors.Is(err, errFault) || len(failedPorts(err)) > 0 {
		t.Errorf("Apply: got error %v, want %v and no ports named", err, errFault)
	}
	if d.kernel.commits > 0 {
		t.Errorf("after a failed List: got %d commits, want none", d.kernel.commits)
	}
}

// After a failure with an unknown outcome, the next Apply lists the objects, whatever old
// snapshot the caller gives.
func TestApplyListsAfterUnknownOutcome(t *testing.T) {
	bad := refused(1)
	first, next := inZone("a", port(0, []int{0}, []int{0}), bad), inZone("a", port(0, []int{0}, []int{1}))
	for what, c := range map[string]struct {
		fails    func(k *fakeKernel)
		old, new proxy.Snapshot
	}{
		"a port that fails on another node": {func(k *fakeKernel) { k.poisoned = true }, first, inZone("b", port(0, []int{0}, []int{0}), bad)},
		"a lost reply":                      {func(k *fakeKernel) { k.lose = func(n int) (int, bool) { return n, true } }, first, next},
		"a failed List":                     {func(k *fakeKernel) { k.fail = func() error { return errFault } }, proxy.Snapshot{}, first},
	} {
		d := newDriver(t)
		d.mustApply(t, first)
		c.fails(d.kernel)
		if err := d.backend.Apply(t.Context(), c.old, c.new); err == nil {
			t.Errorf("%s: got no error, so the test shows nothing", what)
		}
		d.kernel.poisoned, d.kernel.lose, d.kernel.fail = false, nil, nil
		if err := d.backend.Apply(t.Context(), first, next); err != nil {
			t.Errorf("after %s: got error %v, want none", what, err)
		}
		if diff := cmp.Diff(wanted(next), d.kernel.objects); diff != "" {
			t.Errorf("after %s: objects in the kernel (-want +got):\n%s", what, diff)
		}
	}
}

// baselessKernel refuses the static objects.
type baselessKernel struct{ *fakeKernel }

func (k baselessKernel) Commit(ctx context.Context, ops []fakeOp) backends.Outcome {
	before := k.fail
	defer func() { k.fakeKernel.fail = before }()
	if slices.ContainsFunc(ops, func(o fakeOp) bool { return o.Key.kind == baseKind }) {
		k.fakeKernel.fail = func() error { return errPoison }
	}
	return k.fakeKernel.Commit(ctx, ops)
}

// If the target refuses the static objects, Apply finds that out with two commits.
func TestApplyTriesStaticObjectsFirst(t *testing.T) {
	var all []*proxy.ServicePort
	for i := range 64 {
		all = append(all, port(i, []int{i}, []int{i}))
	}
	k := newFakeKernel(t)
	err := backends.New(renderFake, baselessKernel{k}).Apply(t.Context(), proxy.Snapshot{}, inZone("a", all...))
	if !errors.Is(err, errPoison) || len(failedPorts(err)) > 0 {
		t.Errorf("Apply: got error %v, want %v and no ports named", err, errPoison)
	}
	if k.commits != 2 {
		t.Errorf("got %d commits, want 2: of everything, and of the static objects", k.commits)
	}
}

// lenientKernel ignores additions of objects that exist with the same value.
type lenientKernel struct{ *fakeKernel }

func (k lenientKernel) Commit(ctx context.Context, ops []fakeOp) backends.Outcome {
	news := slices.DeleteFunc(slices.Clone(ops), func(o fakeOp) bool {
		value, exists := k.objects[o.Key]
		return o.Kind == backends.Add && exists && value == o.Value
	})
	if len(news) == 0 {
		return backends.Outcome{}
	}
	return k.fakeKernel.Commit(ctx, news)
}

// An object that moves from one port to another is not removed with the former owner if a
// third port fails and the target does not notice that the object existed before.
func TestApplyMovesDespitePoisonOnLenientKernels(t *testing.T) {
	k := newFakeKernel(t)
	d := &driver{backend: backends.New(renderFake, lenientKernel{k}), kernel: k}
	k.poisoned = true
	d.mustApply(t, inZone("a", port(5, []int{0}, []int{0})))
	want := inZone("a", port(0, []int{0}, []int{0}), refused(3), port(5, nil, []int{0}))
	for range 2 { // the second time from the zero snapshot
		if err := d.apply(t.Context(), want); err == nil {
			t.Fatal("got no error, so the test shows nothing")
		}
	}
	d.kernelHolds(t, want.Revert(proxy.Snapshot{}, portName(3)), "after two tries")
}

// Owners of shared objects are counted once, also if an Apply that succeeded in part is
// retried: a change of counts alone is a part, too.
func TestApplyCountsOwnersOnceAfterAFailure(t *testing.T) {
	both := inZone("a", port(0, []int{0}, []int{0, 1}), port(1, nil, []int{0}))
	one := inZone("a", port(0, []int{0}, []int{0, 1}))
	more := port(2, []int{2}, []int{2})
	for what, c := range map[string]struct{ old, next, last proxy.Snapshot }{
		"an owner more": {one, inZone("a", port(0, []int{0}, []int{0, 1}), port(1, nil, []int{0}), more), inZone("a", more)},
		"an owner less": {both, inZone("a", port(0, []int{0}, []int{0, 1}), more), one},
	} {
		d := newDriver(t)
		d.mustApply(t, c.old)
		failures := []error{errFault, backends.ErrUnavailable}
		d.kernel.fail = func() (err error) {
			err, failures = failures[0], failures[1:]
			return err
		}
		if err := d.apply(t.Context(), c.next); !errors.Is(err, backends.ErrUnavailable) || len(failedPorts(err)) > 0 {
			t.Fatalf("%s: got error %v, want %v and no ports named", what, err, backends.ErrUnavailable)
		} else if !errors.Is(err, proxy.ErrDataplaneLost) {
			t.Errorf("%s: got error %v, want also %v: a part was made", what, err, proxy.ErrDataplaneLost)
		}
		d.kernel.fail, d.applied = nil, c.old // whatever the caller makes of the error
		d.mustApply(t, c.next)
		d.mustApply(t, c.last)
	}
}

// A port that goes where the node changes does not take the new value back from a shared object
// that others keep, where a third port fails and each change is made for itself.
func TestRemovalKeepsTheValueOfASharedObject(t *testing.T) {
	d := newDriver(t)
	d.kernel.poisoned = true
	d.mustApply(t, inZone("a", port(0, []int{0}, []int{0}), port(1, []int{1}, []int{1})))
	err := d.apply(t.Context(), inZone("b", port(0, []int{0}, []int{0}), refused(3)))
	if diff := cmp.Diff([]string{portName(3).String()}, failedPorts(err)); diff != "" {
		t.Errorf("ports that failed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wanted(inZone("b", port(0, []int{0}, []int{0}))), d.kernel.objects); diff != "" {
		t.Errorf("the kernel (-want +got):\n%s", diff)
	}
}

// A first load that ends in the middle leaves no less known than before: its error is what ended
// it, by which a [proxy.Runner] gives up.
func TestFirstLoadThatEndsInTheMiddle(t *testing.T) {
	d := newDriver(t)
	failures := []error{nil, errFault, nil, errors.Join(backends.ErrUnavailable, proxy.ErrUnsupported)}
	d.kernel.fail = func() (err error) {
		err, failures = failures[0], failures[1:]
		return err
	}
	err := d.apply(t.Context(), inZone("a", port(0, []int{0}, []int{0}), port(1, []int{1}, []int{1})))
	if !errors.Is(err, proxy.ErrUnsupported) || errors.Is(err, proxy.ErrDataplaneLost) || len(d.kernel.objects) == 0 {
		t.Errorf("got error %v, want %v, and not %v; there are %d objects, want some", err, proxy.ErrUnsupported, proxy.ErrDataplaneLost, len(d.kernel.objects))
	}
}

// After an Apply that succeeded in part, and after a Cleanup, Drifted returns true, even if
// no other program changed the dataplane.
func TestDriftedAfterAPart(t *testing.T) {
	first, next := inZone("a", port(0, []int{0}, []int{0})), inZone("a", port(0, []int{0}, []int{1}), port(1, []int{1}, []int{1}))
	for what, part := range map[string]func(b proxy.Backend, k *fakeKernel) error{
		"a part of a change": func(b proxy.Backend, k *fakeKernel) error {
			failures := []error{errFault, nil, backends.ErrUnavailable}
			k.fail = func() (err error) {
				err, failures = failures[0], failures[1:]
				return err
			}
			if err := b.Apply(t.Context(), first, next); !errors.Is(err, backends.ErrUnavailable) {
				return fmt.Errorf("got error %w, want %w", err, backends.ErrUnavailable)
			}
			return nil
		},
		"a cleanup": func(b proxy.Backend, _ *fakeKernel) error { return b.Cleanup(t.Context()) },
	} {
		k := newFakeKernel(t)
		k.able.Drifted = func(context.Context) bool { return false }
		b := backends.New(renderFake, k)
		drifted := b.Abilities().Drifted
		if !drifted(t.Context()) {
			t.Error("before the first Apply: Drifted: got false, want true")
		}
		testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, first))
		if drifted(t.Context()) {
			t.Error("after the first Apply: Drifted: got true, want false")
		}
		if err := part(b, k); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if !drifted(t.Context()) {
			t.Errorf("after %s: Drifted: got false, want true", what)
		}
	}
}

// The zero snapshot has no node and no objects, whatever was applied before.
func TestApplyOfTheZeroSnapshot(t *testing.T) {
	d := newDriver(t)
	for _, what := range []string{"first", "after another one"} {
		testenv.NoError(t, d.apply(t.Context(), proxy.Snapshot{}))
		if len(d.kernel.objects) != 0 {
			t.Errorf("%s: the kernel holds %v, want nothing", what, d.kernel.objects)
		}
		testenv.NoError(t, d.apply(t.Context(), inZone("a", plainPort(1))))
	}
}

// Facts that change have everything rendered again, without a List, as another node has; equal ones have nothing
// rendered.
func TestApplyRendersFacts(t *testing.T) {
	k, found := newFakeKernel(t), ""
	k.able.Facts = func(proxy.Snapshot) any { return map[string]string{"zone": found} }
	d := &driver{kernel: k, backend: backends.New(func(env backends.Env, port *proxy.ServicePort, to []fakeObject) []fakeObject {
		facts, _ := env.Facts.(map[string]string)
		return append(to, objectsOf(&proxy.Node{Zone: facts["zone"]}, port)...)
	}, k)}
	node := &proxy.Node{Zone: "elsewhere"}
	var lists int
	for step, zone := range []string{"a", "b", "b", "a"} {
		found = zone
		ports := []*proxy.ServicePort{plainPort(1), plainPort(2)}[:1+step%2]
		testenv.NoError(t, d.apply(t.Context(), proxy.NewSnapshot(node, ports...)))
		d.kernelHolds(t, inZone(zone, ports...), "in zone "+zone)
		if step == 0 {
			lists = k.lists
		}
	}
	if k.lists != lists {
		t.Errorf("lists: got %d, want only the first %d", k.lists, lists)
	}
}
