package backends_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// ableKernel counts its operations itself, and knows whether others were there.
type ableKernel struct {
	*fakeKernel
	drifted bool
}

func (ableKernel) Operations() uint64             { return 42 }
func (k ableKernel) Drifted(context.Context) bool { return k.drifted }

func (ableKernel) CheckNode(s proxy.Snapshot) []*proxy.Problem {
	return []*proxy.Problem{{Field: "node of " + s.Node().Zone}}
}

func (k ableKernel) WaitDrift(ctx context.Context) error {
	if !k.drifted {
		<-ctx.Done()
	}
	return ctx.Err()
}

// What a target can say itself, the backend passes on. Of others, it counts what was
// committed, and takes them for changed at any time.
func TestAbilitiesOfTargets(t *testing.T) {
	k := newFakeKernel(t)
	for _, c := range []struct {
		what       string
		target     backends.Target[fakeKey, string]
		operations uint64
		drifted    bool
		wait       error
		found      []*proxy.Problem
	}{
		{"a target that can do nothing", k, uint64(len(wanted(inZone("a")))), true, proxy.ErrUnsupported, nil},
		{"one that can, unchanged", ableKernel{k, false}, 42, false, context.DeadlineExceeded, []*proxy.Problem{{Field: "node of a"}}},
		{"one that can, changed", ableKernel{k, true}, 42, true, nil, []*proxy.Problem{{Field: "node of a"}}},
	} {
		clear(k.objects)
		b := backends.New(renderFake, c.target)
		if err := b.Apply(t.Context(), proxy.Snapshot{}, inZone("a")); err != nil {
			t.Fatal(err)
		}
		var found []*proxy.Problem
		if checker, ok := b.(backends.NodeChecker); ok {
			found = checker.CheckNode(inZone("a"))
		}
		if diff := cmp.Diff(c.found, found); diff != "" {
			t.Errorf("%s: problems of the node (-want +got):\n%s", c.what, diff)
		}
		if counter, ok := b.(proxy.OperationCounter); !ok || counter.Operations() != c.operations {
			t.Errorf("%s: got %d operations, want %d", c.what, counter.Operations(), c.operations)
		}
		if checker, ok := b.(proxy.DriftChecker); !ok || checker.Drifted(t.Context()) != c.drifted {
			t.Errorf("%s: has drifted: got %t, want %t", c.what, !c.drifted, c.drifted)
		} else {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			if err := checker.WaitDrift(ctx); !errors.Is(err, c.wait) {
				t.Errorf("%s: waiting for drift: got error %v, want %v", c.what, err, c.wait)
			}
			cancel()
		}
	}
}

// diffingKernel renders what a change makes different by itself, where it likes to.
type diffingKernel struct {
	*fakeKernel
	likes func() bool
	asked int
}

func (k *diffingKernel) RenderDiff(node *proxy.Node, c proxy.Change, removed, added []fakeObject) (r, a []fakeObject, ok bool) {
	k.asked++
	old, new := objectsOf(node, c.Old), objectsOf(node, c.New)
	gone, come := without(old, new), without(new, old)
	changes := slices.ContainsFunc(gone, func(o fakeObject) bool {
		return slices.ContainsFunc(come, func(n fakeObject) bool { return n.Key == o.Key })
	})
	return append(removed, gone...), append(added, come...), !changes && k.likes()
}

// without leaves out of a list what is on another one, as often as it is there.
func without(list, other []fakeObject) []fakeObject {
	other = slices.Clone(other)
	return slices.DeleteFunc(slices.Clone(list), func(o fakeObject) bool {
		i := slices.Index(other, o)
		if i >= 0 {
			other = slices.Delete(other, i, i+1)
		}
		return i >= 0
	})
}

// A target that renders differences is asked between ports of one node, and what it
// leaves to the backend is rendered in full.
func TestApplyFollowsHistoryByDifferences(t *testing.T) {
	r := testenv.Random(t)
	k := &diffingKernel{fakeKernel: newFakeKernel(t), likes: func() bool { return r.IntN(4) > 0 }}
	d, h := &driver{backend: backends.New(renderFake, k), kernel: k.fakeKernel}, newHistory(r)
	for step := range 2000 {
		h.step()
		want := h.snapshot()
		if err := d.apply(t.Context(), want); err != nil {
			t.Fatalf("step %d: Apply: got error %v, want none", step, err)
		}
		d.kernelHolds(t, want, fmt.Sprintf("step %d", step))
	}
	if k.asked == 0 {
		t.Error("the target was never asked, so the test shows nothing")
	}
}

// A look that fails is no empty list: nothing is made beside what nobody has seen.
func TestApplyReportsLooksThatFail(t *testing.T) {
	d := newDriver(t)
	d.kernel.fail = func() error { return errFault }
	if err := d.apply(t.Context(), inZone("a", port(0, []int{0}, []int{0}))); !errors.Is(err, errFault) || len(failedPorts(err)) > 0 {
		t.Errorf("Apply: got error %v, want %v and no ports named", err, errFault)
	}
	if d.kernel.commits > 0 {
		t.Errorf("after a look that failed, there were %d commits, want none", d.kernel.commits)
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
		"an answer that does not come":      {func(k *fakeKernel) { k.lose = func(n int) (int, bool) { return n, true } }, first, next},
		"a look that fails":                 {func(k *fakeKernel) { k.fail = func() error { return errFault } }, proxy.Snapshot{}, first},
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
			t.Errorf("after %s: the kernel (-want +got):\n%s", what, diff)
		}
	}
}

// baselessKernel takes everything but what all service ports need.
type baselessKernel struct{ *fakeKernel }

func (k baselessKernel) Commit(ctx context.Context, ops []fakeOp) error {
	before := k.fail
	defer func() { k.fakeKernel.fail = before }()
	if slices.ContainsFunc(ops, func(o fakeOp) bool { return o.Key.kind == baseKind }) {
		k.fakeKernel.fail = func() error { return errPoison }
	}
	return k.fakeKernel.Commit(ctx, ops)
}

// Where what all service ports need is refused, that is found out at once.
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
		t.Errorf("there were %d commits, want 2: of all, and of what all need", k.commits)
	}
}

// lenientKernel has no objection to being told again what is there.
type lenientKernel struct{ *fakeKernel }

func (k lenientKernel) Commit(ctx context.Context, ops []fakeOp) error {
	news := slices.DeleteFunc(slices.Clone(ops), func(o fakeOp) bool {
		value, exists := k.objects[o.Key]
		return o.Kind == backends.Add && exists && value == o.Value
	})
	if len(news) == 0 {
		return nil
	}
	return k.fakeKernel.Commit(ctx, news)
}

// An object that moves from one port to another does not go with the former owner,
// where a third port fails and the target does not notice that it was there before.
func TestApplyMovesDespitePoisonOnLenientKernels(t *testing.T) {
	k := newFakeKernel(t)
	d := &driver{backend: backends.New(renderFake, lenientKernel{k}), kernel: k}
	k.poisoned = true
	d.mustApply(t, inZone("a", port(5, []int{0}, []int{0})))
	want := inZone("a", port(0, []int{0}, []int{0}), refused(3), port(5, nil, []int{0}))
	for range 2 { // the second time from the beginning
		if err := d.apply(t.Context(), want); err == nil {
			t.Fatal("got no error, so the test shows nothing")
		}
	}
	d.kernelHolds(t, want.Revert(proxy.Snapshot{}, portName(3)), "after two tries")
}

// Owners of shared objects are counted once, also where an Apply that was carried out in
// part is tried again: what it changed in counts alone is a part too.
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
		}
		d.kernel.fail = nil
		d.mustApply(t, c.next)
		d.mustApply(t, c.last)
	}
}

// Who has carried out a part, or taken everything away, does not say that all is as it
// was left, even if nobody else was there.
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
			t.Error("before the first Apply: has drifted: got false, want true")
		}
		if err := b.Apply(t.Context(), proxy.Snapshot{}, first); err != nil {
			t.Fatal(err)
		}
		if checker.Drifted(t.Context()) {
			t.Error("after the first Apply: has drifted: got true, want false")
		}
		if err := part(b, k); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if !checker.Drifted(t.Context()) {
			t.Errorf("after %s: has drifted: got false, want true", what)
		}
	}
}
