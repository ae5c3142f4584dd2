package backends_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// A fault at any operation of any change leaves each object as it was or as it should be, and all service
// ports that the error does not name served. Once nothing fails any more, everything is as it should be.
func TestFaultAtEveryOp(t *testing.T) { eachKind(t, checkFaultAtEveryOp) }

func checkFaultAtEveryOp(t *testing.T, d *driver) {
	r := testenv.Random(t)
	h := newHistory(r)
	d.kernel.splits = true
	faults, lost := 0, 0
	for step := range 1500 {
		h.step()
		want := h.snapshot()
		if r.IntN(100) == 0 {
			d.restart()
		}
		if r.IntN(4) == 0 && !d.applied.IsZero() {
			want = d.applied // what failed changes back
		}
		b := d.before(want)
		d.kernel.refuse = refuseAtRandom(r)
		err := d.apply(t.Context(), want)
		d.kernel.refuse = nil
		if errors.Is(err, backends.ErrConflict) && !strings.Contains(err.Error(), "needs") && !strings.Contains(err.Error(), "refers to") {
			t.Fatalf("step %d: got error %v, although nothing else changes the kernel", step, err)
		}
		switch {
		case errors.Is(err, backends.ErrUnavailable):
		case err != nil && (errors.Is(err, proxy.ErrDataplaneLost) || len(failedNames(err)) == 0):
			lost++
		default:
			faults += len(failedNames(err))
			b.check(t, err, fmt.Sprintf("step %d", step))
		}
		if r.IntN(3) == 0 { // else the next change meets what is pending
			d.converge(t, want, step)
		}
	}
	if faults < 100 || lost > 500 {
		t.Errorf("got %d failed changes of ports and %d of everything, want at least 100 and at most 500", faults, lost)
	}
}

// refuseAtRandom refuses one op and some later ones, or, seldom, all of them because nothing can be changed.
func refuseAtRandom(r *rand.Rand) func(fakeOp) error {
	at, unavailable := r.IntN(25), r.IntN(8) == 0
	return func(op fakeOp) error {
		if unavailable {
			return backends.ErrUnavailable
		}
		if at--; at == -1 || at < 0 && r.IntN(10) == 0 {
			return fmt.Errorf("%w: %v %v", errFault, op.Kind, op.Key)
		}
		return nil
	}
}

// What a kernel did not carry out keeps its indexes, whatever the order in which a target tries the ops.
func TestOutcomeOfPartitionedOps(t *testing.T) {
	ops := []fakeOp{{Key: fakeKey{kind: 0}}, {Key: fakeKey{kind: 1}}, {Key: fakeKey{kind: 2}}, {Key: fakeKey{kind: 3}}}
	ordered, first, indexes := backends.Partition(ops, func(o *fakeOp) bool { return o.Key.kind%2 == 1 })
	var kinds []int
	for _, o := range ordered {
		kinds = append(kinds, o.Key.kind)
	}
	if want := []int{1, 3, 0, 2}; first != 2 || !slices.Equal(kinds, want) {
		t.Errorf("got %v, of which %d are first, want %v and 2", kinds, first, want)
	}
	out := backends.PartialOutcome(3, 4, errFault).At(indexes)
	if len(out.Failed) != 1 || !errors.Is(out.Failed[2], errFault) || !out.Together || out.Lost != nil {
		t.Errorf("got outcome %+v, want op 2 to fail", out)
	}
	for _, lost := range []backends.Outcome{backends.PartialOutcome(4, 4, errFault), backends.PartialOutcome(0, 4, proxy.ErrDataplaneLost)} {
		if !errors.Is(lost.Err(), proxy.ErrDataplaneLost) || len(lost.Failed) > 0 {
			t.Errorf("got outcome %+v, want a lost state", lost)
		}
	}
	if out = backends.PartialOutcome(4, 4, nil); out.Err() != nil {
		t.Errorf("got outcome %+v, want none", out)
	}
}

// Each removes nothing after an op has failed, and tries no other after an error that ends everything.
func TestEach(t *testing.T) {
	ops := []fakeOp{{Kind: backends.Add}, {Kind: backends.Replace}, {Kind: backends.Add}, {Kind: backends.Remove}}
	for _, c := range []struct {
		fails  int
		err    error
		tried  int
		failed []int
		lost   bool
	}{
		{-1, nil, 4, nil, false},
		{1, errFault, 3, []int{1, 3}, false},
		{3, errFault, 4, []int{3}, false},
		{0, backends.ErrUnavailable, 1, []int{0, 1, 2, 3}, false},
		{1, proxy.ErrDataplaneLost, 2, nil, true},
	} {
		tried := 0
		out := backends.Each(t.Context(), ops, func(*fakeOp) error {
			if tried++; tried == c.fails+1 {
				return c.err
			}
			return nil
		})
		failed := slices.Sorted(maps.Keys(out.Failed))
		if tried != c.tried || !slices.Equal(failed, c.failed) || out.Together || (out.Lost != nil) != c.lost || !errors.Is(out.Err(), c.err) {
			t.Errorf("op %d fails with %v: %d tried, got outcome %+v, want %d and %v", c.fails, c.err, tried, out, c.tried, c.failed)
		}
	}
}

// What a failed change of a service port has done is put right once the port is as it was before, also if
// an Apply in between could change nothing.
func TestFailedPortChangesBackLater(t *testing.T) {
	d := newDriver(t)
	d.kernel.single = true
	old := inZone("a", port(0, []int{0, 1}, []int{0}))
	d.mustApply(t, old)
	grown := inZone("a", port(0, []int{0, 1}, []int{0, 1}))
	d.kernel.refuse = func(op fakeOp) error {
		if op.Kind == backends.Replace && op.Key.name == frontendAddr(1).String() {
			return errFault
		}
		return nil
	}
	if err := d.apply(t.Context(), grown); len(failedNames(err)) != 1 {
		t.Fatalf("got error %v, want one service port to fail", err)
	}
	d.kernel.refuse = func(fakeOp) error { return backends.ErrUnavailable }
	if err := d.apply(t.Context(), grown); !errors.Is(err, backends.ErrUnavailable) {
		t.Fatalf("got error %v, want %v", err, backends.ErrUnavailable)
	}
	d.kernel.refuse = nil
	d.mustApply(t, old)
}

// An object that a change of one service port should make for another one, and could not make, is missing: the
// kernel lacks a host of a port that could not be removed, and gets it once that port is wanted again.
func TestHostOfFailedPortIsMadeAgain(t *testing.T) {
	d := newDriver(t)
	d.kernel.single = true
	stays := inZone("a", port(0, []int{0}, []int{0}))
	d.mustApply(t, inZone("a", port(0, []int{0}, []int{0}), port(1, []int{1}, []int{0, 1})))
	frontend, host := frontendAddr(0).String(), endpointAddr(0, 8080).Addr().String()
	d.kernel.refuse = func(op fakeOp) error {
		if op.Kind == backends.Remove && op.Key.name == frontend && op.Key.kind == frontendKind || op.Kind == backends.Add && op.Key.name == host {
			return errFault
		}
		return nil
	}
	err := d.apply(t.Context(), inZone("a"))
	if names := failedPorts(err); !slices.Equal(names, []string{portName(0).String()}) {
		t.Fatalf("got error %v, want port 0 alone to fail", err)
	}
	d.kernel.refuse = nil
	d.mustApply(t, stays)
}

// A conflict among the errors of a commit says that the state is not the one which is known, whatever else failed.
func TestConflictAmongOtherErrors(t *testing.T) {
	for range 20 { // errors are in a map
		d := newDriver(t)
		d.kernel.single = true
		d.mustApply(t, inZone("a", port(0, []int{0}, []int{0}), port(1, []int{1}, []int{0})))
		foreign := fakeKey{slotKind, frontendAddr(0).String(), endpointAddr(1, 8080).String()}
		d.kernel.objects[fakeKey{hostKind, endpointAddr(1, 8080).Addr().String(), ""}], d.kernel.objects[foreign] = "", "foreign"
		d.kernel.refuse = func(op fakeOp) error {
			if op.Kind == backends.Add && op.Key.name == frontendAddr(1).String() {
				return errFault
			}
			return nil
		}
		err := d.apply(t.Context(), inZone("a", port(0, []int{0}, []int{0, 1}), port(1, []int{1}, []int{0, 2})))
		if !errors.Is(err, proxy.ErrDataplaneLost) {
			t.Fatalf("got error %v, want %v", err, proxy.ErrDataplaneLost)
		}
	}
}

// A service port that is refused again and again costs no listing, although its former objects keep others that
// nothing else needs.
func TestRefusedPortKeepsStateKnown(t *testing.T) { eachKind(t, checkRefusedKeepsKnown) }

func checkRefusedKeepsKnown(t *testing.T, d *driver) {
	d.mustApply(t, inZone("a", port(0, []int{0}, []int{0}), port(1, []int{1}, []int{1, 2})))
	d.restart()
	d.kernel.poisoned = true
	bad := port(0, []int{0}, []int{0, 1, 2})
	bad.Cluster = append(bad.Cluster, refused(0).Cluster...)
	for i := range 4 {
		want := inZone("a", bad, port(1, []int{1}, []int{1, 3 + i}))
		if err := d.apply(t.Context(), want); len(failedNames(err)) != 1 || errors.Is(err, proxy.ErrDataplaneLost) {
			t.Fatalf("Apply %d: got error %v, want port 0 to fail", i, err)
		}
	}
	if d.kernel.lists != 2 {
		t.Errorf("got %d listings, want 2, one for each process", d.kernel.lists)
	}
}

// The error of an outcome is the same each time: that of the first op, or the first one that ends the Apply.
func TestErrorOfAnOutcome(t *testing.T) {
	first, other, locked := errors.New("first"), errors.New("other"), fmt.Errorf("%w: locked", backends.ErrUnavailable)
	for range 50 {
		out := backends.Outcome{Failed: map[int]error{4: first, 5: other, 6: other, 7: other}}
		if err := out.Err(); err != first { //nolint:errorlint // it is this very error
			t.Fatalf("got error %v, want %v", err, first)
		}
		out.Failed[8], out.Failed[9] = locked, backends.ErrUnavailable
		if err := out.Err(); err != locked { //nolint:errorlint // it is this very error
			t.Fatalf("got error %v, want %v", err, locked)
		}
	}
}
