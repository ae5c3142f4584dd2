package backends_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// refused makes a service port that a poisoned kernel refuses.
func refused(i int) *proxy.ServicePort {
	p := port(i, []int{i}, nil)
	p.Cluster = []*endpoints.Endpoint{{Addr: endpointAddr(0, poisonPort)}}
	return p
}

// If the context has ended already, Apply does not call the target.
func TestApplyUnderEndedContext(t *testing.T) {
	d := newDriver(t)
	first := inZone("a", port(0, []int{0}, []int{0}))
	d.mustApply(t, first)
	lists, commits := d.kernel.lists, d.kernel.commits
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, old := range []proxy.Snapshot{first, {}} {
		for _, s := range []proxy.Snapshot{first, inZone("a", port(0, []int{0}, []int{1}))} {
			if err := d.backend.Apply(ctx, old, s); !errors.Is(err, context.Canceled) {
				t.Errorf("Apply from generation %d: got error %v, want %v", old.Generation(), err, context.Canceled)
			}
		}
	}
	if l, c := d.kernel.lists-lists, d.kernel.commits-commits; l+c > 0 {
		t.Errorf("got %d lists and %d commits, want none", l, c)
	}
}

// ErrUnsupported is reported for the service ports that cause it, or for the whole Apply if
// the static objects cause it; after ErrUnavailable nothing else is tried.
func TestApplyNamesUnsupportedPorts(t *testing.T) {
	for _, tc := range []struct {
		err     error
		blamed  int
		commits int
	}{
		{proxy.ErrUnsupported, 2, 3},
		{backends.ErrUnavailable, 0, 1},
		{errors.Join(backends.ErrUnavailable, proxy.ErrUnsupported), 0, 1},
	} {
		d := newDriver(t)
		d.mustApply(t, inZone("a", port(0, []int{0}, []int{0})))
		d.kernel.fail = func() error { return fmt.Errorf("%w: no such thing", tc.err) }
		commits := d.kernel.commits
		err := d.apply(t.Context(), inZone("a", port(0, []int{0}, []int{1}), port(1, []int{1}, []int{1})))
		if !errors.Is(err, tc.err) && tc.blamed == 0 || len(failedPorts(err)) != tc.blamed {
			t.Errorf("%v: got error %v, want %d ports named", tc.err, err, tc.blamed)
		}
		if got := d.kernel.commits - commits; got != tc.commits {
			t.Errorf("%v: got %d commits, want %d", tc.err, got, tc.commits)
		}
	}
	d := newDriver(t)
	d.kernel.fail = func() error { return proxy.ErrUnsupported }
	err := d.apply(t.Context(), inZone("a", port(0, []int{0}, []int{1})))
	if !errors.Is(err, proxy.ErrUnsupported) || len(failedPorts(err)) > 0 {
		t.Errorf("static objects: got error %v, want %v and no ports named", err, proxy.ErrUnsupported)
	}
}

// fullKernel refuses commits while it is full, except those of a replacement.
type fullKernel struct {
	*fakeKernel
	full bool
	// old are the objects to replace; replaced counts the replacements.
	old      map[fakeKey]string
	replaced int
	// pieces is what Pieces returns.
	pieces int
}

func (k *fullKernel) Replace(context.Context, proxy.Snapshot, bool) backends.Replacement[fakeKey, string] {
	if !k.full {
		return nil
	}
	k.old, k.objects = k.objects, map[fakeKey]string{}
	return k
}

func (k *fullKernel) Pieces() int { return k.pieces }

func (k *fullKernel) Finish(context.Context) error {
	k.full, k.old = false, nil
	k.replaced++
	return nil
}

func (k *fullKernel) Commit(ctx context.Context, ops []fakeOp) backends.Outcome {
	if k.full && k.old == nil {
		k.commits++
		return backends.PartialOutcome(0, len(ops), fmt.Errorf("%w: full", backends.ErrReplace))
	}
	return k.fakeKernel.Commit(ctx, ops)
}

func newFullDriver(t *testing.T) (*driver, *fullKernel) {
	k := &fullKernel{fakeKernel: newFakeKernel(t)}
	k.able.Replace = k.Replace
	return &driver{backend: backends.New(renderFake, k), kernel: k.fakeKernel}, k
}

// After ErrReplace, everything is replaced at once, without further attempts to commit parts
// of the refused operations.
func TestApplyBeginsAgain(t *testing.T) {
	d, k := newFullDriver(t)
	d.mustApply(t, inZone("a", port(0, []int{0}, []int{0, 1}), port(1, []int{1}, []int{1})))
	lists, commits := k.lists, k.commits
	k.full = true
	d.mustApply(t, inZone("a", port(0, []int{0}, []int{0, 2}), port(1, []int{1}, []int{2}), port(2, []int{2}, []int{2})))
	if l, c := k.lists-lists, k.commits-commits; l != 0 || c != 2 || k.replaced != 1 {
		t.Errorf("got %d lists, %d commits and %d replacements, want 0, 2 and 1", l, c, k.replaced)
	}
}

// A port that fails when everything is replaced does not exist any more: it is not as before.
func TestApplyBeginsAgainDespitePoison(t *testing.T) {
	d, k := newFullDriver(t)
	d.mustApply(t, inZone("a", port(0, []int{0}, []int{0}), port(1, []int{1}, []int{1})))
	k.full, k.poisoned = true, true
	want := inZone("a", port(0, []int{0}, []int{0, 2}), refused(1))
	err := d.apply(t.Context(), want)
	if diff := cmp.Diff([]string{portName(1).String()}, failedPorts(err)); diff != "" || !errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("Apply: got error %v, want %v; ports that failed (-want +got):\n%s", err, proxy.ErrDataplaneLost, diff)
	}
	k.poisoned = false
	d.mustApply(t, want)
}

// A replacement is divided into several commits, as a full apply is, and takes effect as a
// whole.
func TestApplyReplacesInChunks(t *testing.T) {
	hosts := make([]int, 20)
	for i := range hosts {
		hosts[i] = i
	}
	var all []*proxy.ServicePort
	for i := range 1000 {
		all = append(all, port(i, []int{i}, hosts))
	}
	for _, tc := range []struct{ pieces, least, most int }{{0, 2, 16}, {1, 1, 1}, {4, 4, 4}} {
		d, k := newFullDriver(t)
		k.full, k.pieces = true, tc.pieces
		d.mustApply(t, inZone("a", all...))
		if k.lists != 0 || k.commits < tc.least || k.commits > tc.most || k.replaced != 1 {
			t.Errorf("%d pieces: got %d lists, %d commits and %d replacements, want none, %d to %d and 1",
				tc.pieces, k.lists, k.commits, k.replaced, tc.least, tc.most)
		}
	}
}

// stutteringKernel lists objects twice, as a kernel may do if they change meanwhile.
type stutteringKernel struct{ *fakeKernel }

func (k stutteringKernel) List(ctx context.Context) iter.Seq2[fakeObject, error] {
	return func(yield func(fakeObject, error) bool) {
		for o, err := range k.fakeKernel.List(ctx) {
			for range 2 {
				if !yield(o, err) {
					return
				}
			}
		}
	}
}

func TestApplyAdoptsWhatIsListedTwice(t *testing.T) {
	k := newFakeKernel(t)
	d := &driver{backend: backends.New(renderFake, k), kernel: k}
	d.mustApply(t, inZone("a", port(0, []int{0}, []int{0, 1}), port(1, []int{1}, []int{1})))
	d.backend, d.applied = backends.New(renderFake, stutteringKernel{k}), proxy.Snapshot{}
	d.mustApply(t, inZone("a", port(0, []int{0}, []int{0, 2})))
}

// A long list of objects may change in any way: order, values, and the number of times it
// has a shared object. The kernel then has the objects of the lists, and no others.
func TestApplyFindsDifferencesOfLongLists(t *testing.T) {
	r := testenv.Random(t)
	lists := map[*proxy.ServicePort][]fakeObject{}
	render := func(_ backends.Env, p *proxy.ServicePort, to []fakeObject) []fakeObject {
		return append(to, lists[p]...)
	}
	k := newFakeKernel(t)
	backend, applied := backends.New(render, k), proxy.NewSnapshot(nil)
	for step := range 60 {
		var all []*proxy.ServicePort
		want := map[fakeKey]string{}
		for i := range 2 {
			p := &proxy.ServicePort{Name: portName(i), HealthCheckNodePort: uint16(step)} // another one each time
			for range r.IntN(3) * 60 {
				n := r.IntN(90)
				own := rendered(fakeKey{baseKind, fmt.Sprint(i, "/", n), ""}, fmt.Sprint(step-r.IntN(2)))
				if _, there := want[own.Key]; !there {
					lists[p], want[own.Key] = append(lists[p], own), own.Value
				}
				shared := rendered(fakeKey{hostKind, fmt.Sprint(r.IntN(20)), ""}, "")
				lists[p], want[shared.Key] = append(lists[p], shared), ""
			}
			all = append(all, p)
		}
		next := proxy.NewSnapshot(nil, all...)
		if err := backend.Apply(t.Context(), applied, next); err != nil {
			t.Fatalf("step %d: Apply: got error %v, want none", step, err)
		}
		if diff := cmp.Diff(want, k.objects); diff != "" {
			t.Fatalf("step %d: objects in the kernel (-want +got):\n%s", step, diff)
		}
		applied = next
	}
}

// A process that has adopted many objects needs no more memory than one that has made them.
func TestApplyForgetsWhatItAdopted(t *testing.T) {
	var all []*proxy.ServicePort
	for i := range 5000 {
		all = append(all, port(i, []int{i}, []int{0, 1, 2, 3, 4, 5, 6, 7}))
	}
	d, want := newDriver(t), inZone("a", all...)
	d.mustApply(t, want)
	made := heapInUse()
	d.restart()
	d.mustApply(t, want)
	const limit = 1 << 20 // bytes; the list of the objects takes 5 MB
	if adopted := heapInUse(); adopted > made+limit {
		t.Errorf("got %d bytes in use after adopting %d objects, want at most %d, as after making them", adopted, len(d.kernel.objects), made+limit)
	}
	runtime.KeepAlive(d)
}

func heapInUse() uint64 {
	for range 2 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
