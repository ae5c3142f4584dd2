package backends_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// replacingKernel always replaces everything.
type replacingKernel struct {
	*fakeKernel
	asked proxy.Snapshot
	// serving are the former objects, until they are replaced.
	serving map[fakeKey]string
	// finished has the number of commits at each Finish; refuse is the error of Finish.
	finished []int
	refuse   error
	// beside counts the commits of replacements.
	beside int
}

// replacing is the replacement that a replacingKernel gives.
type replacing struct{ *replacingKernel }

func (r replacing) Commit(ctx context.Context, ops []fakeOp) backends.Outcome {
	k := r.replacingKernel
	k.beside++
	return k.Commit(ctx, ops)
}

func (k *replacingKernel) Replace(_ context.Context, want proxy.Snapshot, _ bool) backends.Replacement[fakeKey, string] {
	if k.serving == nil {
		k.serving = k.objects
	}
	k.asked, k.objects = want, map[fakeKey]string{}
	return replacing{k}
}

func (*replacingKernel) Pieces() int { return 0 }

func (k *replacingKernel) Finish(context.Context) error {
	k.finished = append(k.finished, k.commits)
	if k.refuse == nil {
		k.serving = nil
	}
	return k.refuse
}

func newReplacingKernel(t *testing.T) (*replacingKernel, *driver) {
	k := &replacingKernel{fakeKernel: newFakeKernel(t)}
	k.able.Replace = k.Replace
	k.objects[fakeKey{hostKind, "192.0.2.1", ""}] = "from an earlier process"
	return k, &driver{backend: backends.New(renderFake, k), kernel: k.fakeKernel}
}

func TestApplyReplacesEverything(t *testing.T) {
	k, d := newReplacingKernel(t)
	k.poisoned = true
	bad := port(2, []int{2}, nil)
	bad.Cluster = []*endpoints.Endpoint{{Addr: endpointAddr(0, poisonPort)}}
	want := inZone("a", port(0, []int{0}, []int{0, 1}), port(1, []int{1}, []int{0}), bad)
	err := d.apply(t.Context(), want)
	if diff := cmp.Diff([]string{bad.Name.String()}, failedPorts(err)); diff != "" {
		t.Errorf("ports that failed (-want +got):\n%s", diff)
	}
	d.kernelHolds(t, d.applied, "after the replacement")
	if k.lists != 0 {
		t.Errorf("got %d calls of List, want 0", k.lists)
	}
	if diff := cmp.Diff(wanted(want), wanted(k.asked)); diff != "" {
		t.Errorf("snapshot of Replace (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{k.commits}, k.finished); diff != "" || k.serving != nil {
		t.Errorf("commits before Finish (-want +got):\n%s", diff)
	}
}

// TestApplyReplacesInTheEnd: the former objects stay until all new ones are made, however
// often that fails.
func TestApplyReplacesInTheEnd(t *testing.T) {
	k, d := newReplacingKernel(t)
	want := inZone("a", port(0, []int{0}, []int{0, 1}))
	for _, fail := range []func(error){
		func(err error) { k.fail = func() error { return err } },
		func(err error) { k.fail, k.refuse = nil, err },
	} {
		fail(errFault)
		if err := d.apply(t.Context(), want); !errors.Is(err, errFault) {
			t.Errorf("got error %v, want %v", err, errFault)
		}
		if len(k.serving) != 1 {
			t.Errorf("after a failure: got %d former objects, want 1", len(k.serving))
		}
	}
	k.refuse = nil
	d.mustApply(t, want)
	d.kernelHolds(t, want, "after the replacement")
	if k.serving != nil || len(k.finished) != 2 {
		t.Errorf("after %d calls of Finish: got former objects, want none, and 2 calls", len(k.finished))
	}
}

// TestReplacementEndsWithApply: after an Apply that replaced everything, or failed to, the target
// gets the commits.
func TestReplacementEndsWithApply(t *testing.T) {
	s := inZone("a", port(0, []int{0}, []int{0, 1}))
	for _, refuse := range []error{nil, errFault} {
		k, d := newReplacingKernel(t)
		k.refuse = refuse
		if err := d.apply(t.Context(), s); !errors.Is(err, refuse) || k.beside == 0 {
			t.Fatalf("got error %v after %d commits of the replacement, want %v after some", err, k.beside, refuse)
		}
		k.beside = 0
		if refuse == nil {
			d.mustApply(t, inZone("a", port(0, []int{0}, []int{0, 2})))
		}
		commits := k.commits
		if err := d.backend.Cleanup(t.Context()); err != nil {
			t.Errorf("Cleanup: got error %v, want none", err)
		}
		if k.beside > 0 || k.commits == commits {
			t.Errorf("Finish gave %v: %d commits came to the replacement later, and %d of the Cleanup to the target", refuse, k.beside, k.commits-commits)
		}
	}
}

// TestApplyReplacesNothingByHalves: if the system runs out of memory during a replacement,
// the former objects stay in effect, and the error names no port.
func TestApplyReplacesNothingByHalves(t *testing.T) {
	k, d := newReplacingKernel(t)
	var all []*proxy.ServicePort
	for i := range 2000 {
		all = append(all, port(i, []int{i}, []int{0, 1, 2, 3, 4, 5, 6, 7}))
	}
	k.fail = func() error {
		if k.commits > 1 {
			return fmt.Errorf("%w: no memory", backends.ErrUnavailable)
		}
		return nil
	}
	err := d.apply(t.Context(), inZone("a", all...))
	if !errors.Is(err, backends.ErrUnavailable) || errors.As(err, new(proxy.PortErrors)) {
		t.Errorf("got error %v, want %v and no ports named: nothing is programmed", err, backends.ErrUnavailable)
	}
	if len(k.finished) > 0 || len(k.serving) != 1 {
		t.Errorf("got %d calls of Finish and %d former objects, want 0 and 1", len(k.finished), len(k.serving))
	}
	k.fail = nil
	d.mustApply(t, inZone("a", all...))
}

// clingingKernel removes no object, as where a foreign one refers to each.
type clingingKernel struct{ *fakeKernel }

func (k clingingKernel) Commit(ctx context.Context, ops []fakeOp) backends.Outcome {
	if slices.ContainsFunc(ops, func(o fakeOp) bool { return o.Kind == backends.Remove }) {
		inner := k.fakeKernel
		inner.commits++
		return backends.PartialOutcome(0, len(ops), fmt.Errorf("%w: in use", backends.ErrConflict))
	}
	return k.fakeKernel.Commit(ctx, ops)
}

// TestLeftoversThatStay: where objects that nobody wants cannot be removed, a target with Replace makes
// everything anew, and for any other target another try would be in vain.
func TestLeftoversThatStay(t *testing.T) {
	want := inZone("a", port(0, []int{0}, []int{0, 1}))
	for _, replaces := range []bool{true, false} {
		k, d := newReplacingKernel(t)
		clinging := clingingKernel{k.fakeKernel}
		k.able.Replace = nil
		if replaces {
			k.able.Replace = func(ctx context.Context, want proxy.Snapshot, must bool) backends.Replacement[fakeKey, string] {
				if !must {
					return nil
				}
				return k.Replace(ctx, want, must)
			}
		}
		d.backend = backends.New(renderFake, backends.Target[fakeKey, string](clinging))
		err := d.apply(t.Context(), want)
		if errors.Is(err, backends.ErrConflict) == replaces || errors.Is(err, backends.ErrReplace) || (err == nil) != replaces {
			t.Errorf("replaces: %t: got error %v", replaces, err)
		}
		commits := 2 // what is wanted, and what is not
		if replaces {
			commits = 3
			d.kernelHolds(t, want, "after the replacement")
		}
		if k.lists != 1 || k.commits != commits {
			t.Errorf("replaces: %t: there were %d listings and %d commits, want 1 and %d", replaces, k.lists, k.commits, commits)
		}
	}
}

// keepingKernel refuses to remove one object.
type keepingKernel struct {
	*fakeKernel
	kept fakeKey
}

func (k keepingKernel) Commit(ctx context.Context, ops []fakeOp) backends.Outcome {
	for _, o := range ops {
		if inner := k.fakeKernel; o.Kind == backends.Remove && o.Key == k.kept {
			inner.commits++
			return backends.PartialOutcome(0, len(ops), fmt.Errorf("%w: %v is in use", errFault, o.Key))
		}
	}
	return k.fakeKernel.Commit(ctx, ops)
}

// TestLeftoverThatStays: an object that cannot be removed keeps itself and what it refers to, and
// no other leftover.
func TestLeftoverThatStays(t *testing.T) {
	var all []*proxy.ServicePort
	for i := range 100 {
		all = append(all, port(i, []int{i}, []int{2 * i, 2*i + 1}))
	}
	for _, cleanup := range []bool{false, true} {
		d := newDriver(t)
		d.mustApply(t, inZone("a", all...))
		slot := fakeKey{slotKind, frontendAddr(50).String(), endpointAddr(100, 8080).String()}
		host := fakeKey{hostKind, endpointAddr(100, 8080).Addr().String(), ""}
		d.backend = backends.New(renderFake, backends.Target[fakeKey, string](keepingKernel{d.kernel, slot}))
		want := map[fakeKey]string{}
		apply := func() error { return d.backend.Cleanup(t.Context()) }
		if !cleanup {
			next := inZone("a", all[0])
			want = wanted(next)
			apply = func() error { return d.backend.Apply(t.Context(), proxy.Snapshot{}, next) }
		}
		want[slot], want[host] = d.kernel.objects[slot], d.kernel.objects[host]
		commits := d.kernel.commits
		if err := apply(); !errors.Is(err, errFault) {
			t.Errorf("cleanup: %t: got error %v, want %v", cleanup, err, errFault)
		}
		if diff := cmp.Diff(want, d.kernel.objects, cmp.AllowUnexported(fakeKey{})); diff != "" {
			t.Errorf("cleanup: %t: objects (-want +got):\n%s", cleanup, diff)
		}
		if got := d.kernel.commits - commits; got > 50 {
			t.Errorf("cleanup: %t: got %d commits, want at most 50", cleanup, got)
		}
		// Without the obstacle, everything that is not wanted goes.
		d.backend = backends.New(renderFake, backends.Target[fakeKey, string](d.kernel))
		if err := d.backend.Cleanup(t.Context()); err != nil || len(d.kernel.objects) > 0 {
			t.Errorf("cleanup: %t: at last: got error %v and %d objects, want none", cleanup, err, len(d.kernel.objects))
		}
	}
}

// TestReplacementThatFailsLeavesNothingKnown: an Apply that had to replace everything and failed,
// without a commit, does not know what the objects before it are.
func TestReplacementThatFailsLeavesNothingKnown(t *testing.T) {
	d, k := newFullDriver(t)
	d.mustApply(t, inZone("a", port(0, []int{0}, []int{0, 1}), port(1, []int{1}, []int{1})))
	k.full, k.fail = true, func() error { return errFault }
	next := inZone("a", port(0, []int{0}, []int{0, 1}), port(1, []int{1}, []int{0, 1}))
	if err := d.apply(t.Context(), next); !errors.Is(err, errFault) || d.applied.IsZero() {
		t.Fatalf("got error %v, dataplane lost: %t; want %v and the old snapshot", err, d.applied.IsZero(), errFault)
	}
	k.objects, k.old, k.full, k.fail = k.old, nil, false, nil
	d.mustApply(t, next)
	d.kernelHolds(t, next, "after the next Apply")
}
