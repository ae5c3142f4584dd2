package backends_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// replacingKernel prefers making everything anew to looking at it.
type replacingKernel struct {
	*fakeKernel
	asked proxy.Snapshot
	// serving is what was there before, until it is replaced.
	serving map[fakeKey]string
	// finished is the number of commits at each Replaced; refuse lets it fail.
	finished []int
	refuse   error
}

func (k *replacingKernel) Replace(_ context.Context, want proxy.Snapshot, _ bool) (yes bool, pieces int) {
	if k.serving == nil {
		k.serving = k.objects
	}
	k.asked, k.objects = want, map[fakeKey]string{}
	return true, 0
}

func (k *replacingKernel) Replaced(context.Context) error {
	k.finished = append(k.finished, k.commits)
	if k.refuse == nil {
		k.serving = nil
	}
	return k.refuse
}

func newReplacingKernel(t *testing.T) (*replacingKernel, *driver) {
	k := &replacingKernel{fakeKernel: newFakeKernel(t)}
	k.objects[fakeKey{hostKind, "192.0.2.1", ""}] = "from another time"
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
		t.Errorf("List was called %d times, want 0", k.lists)
	}
	if diff := cmp.Diff(wanted(want), wanted(k.asked)); diff != "" {
		t.Errorf("what Replace was told will be wanted (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{k.commits}, k.finished); diff != "" || k.serving != nil {
		t.Errorf("commits before Replaced (-want +got):\n%s", diff)
	}
}

// TestApplyReplacesInTheEnd: what was there stays until all is made, however
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
			t.Errorf("what was there before is gone after a failure")
		}
	}
	k.refuse = nil
	d.mustApply(t, want)
	d.kernelHolds(t, want, "after the replacement")
	if k.serving != nil || len(k.finished) != 2 {
		t.Errorf("what was there still serves after %d calls of Replaced", len(k.finished))
	}
}

// TestApplyReplacesNothingByHalves: when the system runs out of memory on the way,
// what was there serves on, and no port is blamed.
func TestApplyReplacesNothingByHalves(t *testing.T) {
	k, d := newReplacingKernel(t)
	var all []*proxy.ServicePort
	for i := range 2000 {
		all = append(all, port(i, []int{i}, []int{0, 1, 2, 3, 4, 5, 6, 7}))
	}
	k.fail = func() error {
		if k.commits > 1 {
			return fmt.Errorf("%w: no memory", backends.ErrExhausted)
		}
		return nil
	}
	err := d.apply(t.Context(), inZone("a", all...))
	if !errors.Is(err, backends.ErrExhausted) || errors.As(err, new(proxy.PortErrors)) {
		t.Errorf("got error %v, want %v and nobody blamed: nothing is programmed", err, backends.ErrExhausted)
	}
	if len(k.finished) > 0 || len(k.serving) != 1 {
		t.Errorf("a part took the place of the whole: Replaced was called %d times", len(k.finished))
	}
	k.fail = nil
	d.mustApply(t, inZone("a", all...))
}
