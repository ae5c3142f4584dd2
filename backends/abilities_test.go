package backends_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// ableKernel has all optional abilities of a target.
type ableKernel struct {
	*fakeKernel
	drifted bool
}

func (ableKernel) Operations() uint64             { return 42 }
func (k ableKernel) Drifted(context.Context) bool { return k.drifted }

func (ableKernel) CheckNode(s proxy.Snapshot) []*proxy.Problem {
	return []*proxy.Problem{{Field: "node of " + s.Node().Zone}}
}

func (ableKernel) CheckLimits(node *proxy.Node, port *proxy.ServicePort) []*proxy.Problem {
	return []*proxy.Problem{{Field: port.Name.Name + " in " + node.Zone}}
}

func (k ableKernel) WaitDrift(ctx context.Context) error {
	if !k.drifted {
		<-ctx.Done()
	}
	return ctx.Err()
}

// The backend uses the abilities of its target. Without them, it counts the committed
// operations, and Drifted is always true.
func TestAbilitiesOfTargets(t *testing.T) {
	k := newFakeKernel(t)
	found, limits := []*proxy.Problem{{Field: "node of a"}}, []*proxy.Problem{{Field: "web in a"}}
	for _, c := range []struct {
		what       string
		target     backends.Target[fakeKey, string]
		operations uint64
		drifted    bool
		wait       error
		found      []*proxy.Problem
		limits     []*proxy.Problem
	}{
		{"a target without abilities", k, uint64(len(wanted(inZone("a")))), true, proxy.ErrUnsupported, nil, nil},
		{"with abilities, no drift", ableKernel{k, false}, 42, false, context.DeadlineExceeded, found, limits},
		{"with abilities, drift", ableKernel{k, true}, 42, true, nil, found, limits},
	} {
		clear(k.objects)
		b := backends.New(renderFake, c.target)
		testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, inZone("a")))
		var found []*proxy.Problem
		if checker, ok := b.(backends.NodeChecker); ok {
			found = checker.CheckNode(inZone("a"))
		}
		if diff := cmp.Diff(c.found, found); diff != "" {
			t.Errorf("%s: problems of the node (-want +got):\n%s", c.what, diff)
		}
		var limits []*proxy.Problem
		if checker, ok := b.(backends.LimitChecker); ok {
			limits = checker.CheckLimits(inZone("a").Node(), &proxy.ServicePort{Name: proxy.ServicePortName{NamespacedName: types.NamespacedName{Name: "web"}}})
		}
		if diff := cmp.Diff(c.limits, limits); diff != "" {
			t.Errorf("%s: limits (-want +got):\n%s", c.what, diff)
		}
		if counter, ok := b.(proxy.OperationCounter); !ok || counter.Operations() != c.operations {
			t.Errorf("%s: got %d operations, want %d", c.what, counter.Operations(), c.operations)
		}
		if checker, ok := b.(proxy.DriftChecker); !ok || checker.Drifted(t.Context()) != c.drifted {
			t.Errorf("%s: Drifted: got %t, want %t", c.what, !c.drifted, c.drifted)
		} else {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			if err := checker.WaitDrift(ctx); !errors.Is(err, c.wait) {
				t.Errorf("%s: WaitDrift: got error %v, want %v", c.what, err, c.wait)
			}
			cancel()
		}
	}
}

// closable is a target that holds resources of the process.
type closable struct {
	*fakeKernel
	closed int
}

var errClosing = errors.New("closing")

func (k *closable) Close() error {
	k.closed++
	return errClosing
}

// Close closes the target, if that is an io.Closer; Apply and Cleanup do not.
func TestClose(t *testing.T) {
	k := &closable{fakeKernel: newFakeKernel(t)}
	b := backends.New(renderFake, backends.Target[fakeKey, string](k))
	err := errors.Join(b.Apply(t.Context(), proxy.Snapshot{}, inZone("a")), b.Cleanup(t.Context()))
	if err != nil || k.closed != 0 {
		t.Errorf("Apply and Cleanup: got error %v, closed %d times, want none and never", err, k.closed)
	}
	if c, can := b.(io.Closer); !can || !errors.Is(c.Close(), errClosing) || k.closed != 1 {
		t.Errorf("Close: got io.Closer %t, closed the target %d times, want once and its error", can, k.closed)
	}
	if c, can := backends.New(renderFake, k.fakeKernel).(io.Closer); !can || c.Close() != nil {
		t.Errorf("Close with a target that is no io.Closer: got io.Closer %t, want one without error", can)
	}
}

// diffingKernel is a DiffRenderer that renders the differences that likes selects.
type diffingKernel struct {
	*fakeKernel
	likes func() bool
	asked int
}

func (k *diffingKernel) RenderDiff(env backends.Env, c proxy.Change, removed, added []fakeObject) (r, a []fakeObject, ok bool) {
	k.asked++
	old, new := objectsOf(env.Node, c.Old), objectsOf(env.Node, c.New)
	gone, come := without(old, new), without(new, old)
	changes := slices.ContainsFunc(gone, func(o fakeObject) bool {
		return slices.ContainsFunc(come, func(n fakeObject) bool { return n.Key == o.Key })
	})
	return append(removed, gone...), append(added, come...), !changes && k.likes()
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

// A DiffRenderer renders changes of ports with one node; if it reports false, both ports are
// rendered in full.
func TestApplyFollowsHistoryByDifferences(t *testing.T) {
	r := testenv.Random(t)
	k := &diffingKernel{fakeKernel: newFakeKernel(t), likes: func() bool { return r.IntN(4) > 0 }}
	d, h := &driver{backend: backends.New(renderFake, k), kernel: k.fakeKernel}, newHistory(r)
	for step := range 1000 {
		h.step()
		want := h.snapshot()
		if err := d.apply(t.Context(), want); err != nil {
			t.Fatalf("step %d: Apply: got error %v, want none", step, err)
		}
		d.kernelHolds(t, want, fmt.Sprintf("step %d", step))
	}
	if k.asked == 0 {
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
		b := backends.New(renderFake, ableKernel{k, false})
		checker, ok := b.(proxy.DriftChecker)
		if !ok || !checker.Drifted(t.Context()) {
			t.Error("before the first Apply: Drifted: got false, want true")
		}
		testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, first))
		if checker.Drifted(t.Context()) {
			t.Error("after the first Apply: Drifted: got true, want false")
		}
		if err := part(b, k); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if !checker.Drifted(t.Context()) {
			t.Errorf("after %s: Drifted: got false, want true", what)
		}
	}
}

// learningKernel is a FactFinder whose facts are the zone in which everything is rendered.
type learningKernel struct {
	*fakeKernel
	zone string
}

func (k *learningKernel) Facts(proxy.Snapshot) any { return map[string]string{"zone": k.zone} }

// Facts that change have everything rendered again, without a List, as another node has; equal ones have nothing
// rendered.
func TestApplyRendersFacts(t *testing.T) {
	k := &learningKernel{fakeKernel: newFakeKernel(t), zone: "a"}
	d := &driver{kernel: k.fakeKernel, backend: backends.New(func(env backends.Env, port *proxy.ServicePort, to []fakeObject) []fakeObject {
		facts, _ := env.Facts.(map[string]string)
		return append(to, objectsOf(&proxy.Node{Zone: facts["zone"]}, port)...)
	}, k)}
	node := &proxy.Node{Zone: "elsewhere"}
	var lists int
	for step, zone := range []string{"a", "b", "b", "a"} {
		k.zone = zone
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
