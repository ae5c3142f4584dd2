package conntrack

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// recorder is a backend that notes from where it was asked to go on, and where to.
type recorder struct {
	from []uint64
	to   proxy.Snapshot
	err  error
}

func (r *recorder) Apply(_ context.Context, old, new proxy.Snapshot) error {
	r.from, r.to = append(r.from, uint64(old.Len())), new
	return r.err
}

func (r *recorder) Cleanup(context.Context) error { return r.err }

func TestWrapKeepsWhatTheBackendAchieved(t *testing.T) {
	n := node()
	one := proxy.NewSnapshot(n, port("dns", v1.ProtocolUDP, list(vip), list(a)))
	two := proxy.NewSnapshot(n, port("dns", v1.ProtocolUDP, list(vip), list(b)), port("ntp", v1.ProtocolUDP, list(vip2), list(b)))
	broken := errors.New("broken")
	table := &fakeTable{flows: []flow{to(protoUDP, vip, a)}}
	inner := &recorder{}
	w := newCleaner(Options{}, table).Wrap(inner)

	must := func(want error, old, new proxy.Snapshot) {
		t.Helper()
		if err := w.Apply(t.Context(), old, new); !errors.Is(err, want) {
			t.Fatalf("Apply: %v, want %v", err, want)
		}
	}
	must(nil, proxy.Snapshot{}, one)
	table.err = broken
	must(broken, one, two) // the backend got there, the flows did not
	table.err = nil
	must(nil, one, two)
	if len(table.flows) != 0 {
		t.Errorf("flows %v left, want none", table.flows)
	}
	inner.err = broken
	table.flows = []flow{to(protoUDP, vip, b)}
	must(broken, two, proxy.NewSnapshot(n))
	if len(table.flows) != 1 {
		t.Error("flows were cleaned though the rules did not change")
	}
	inner.err = proxy.PortErrors{port("dns", v1.ProtocolUDP, nil, nil).Name: broken}
	must(broken, two, proxy.NewSnapshot(n))
	if len(table.flows) != 1 {
		t.Error("flows of a port were cleaned that could not be changed")
	}
	if diff := cmp.Diff([]uint64{0, 1, 2, 2, 2}, inner.from); diff != "" {
		t.Errorf("service ports that the backend was told it has (-want +got):\n%s", diff)
	}
}

// watched is a recorder that knows whether anybody meddled.
type watched struct {
	recorder
	drifted bool
}

func (w *watched) Drifted(context.Context) bool { return w.drifted }

func (w *watched) WaitDrift(context.Context) error { return io.ErrNoProgress }

// What the backend achieved at first is not done again when only the flows lag
// behind, unless somebody meddled.
func TestWrapAfterFirstCleanFailed(t *testing.T) {
	broken := errors.New("broken")
	table := &fakeTable{flows: []flow{to(protoUDP, vip, a), to(protoUDP, "10.96.0.77:53", x)}, err: broken}
	inner := &watched{}
	w := newCleaner(Options{Foreign: isForeign}, table).Wrap(inner)
	one := proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(b)))
	apply := func(want error) {
		t.Helper()
		if err := w.Apply(t.Context(), proxy.Snapshot{}, one); !errors.Is(err, want) {
			t.Fatalf("Apply: %v, want %v", err, want)
		}
	}
	apply(broken)
	apply(broken)
	inner.drifted = true
	apply(broken)
	inner.drifted, table.err = false, nil
	apply(nil)
	if len(table.flows) != 0 {
		t.Errorf("flows %v left, want none", table.flows)
	}
	if err := w.(proxy.DriftChecker).WaitDrift(t.Context()); !errors.Is(err, io.ErrNoProgress) { //nolint:errcheck // it is one
		t.Errorf("waiting for drift: got error %v, want the backend's", err)
	}
	table.flows = []flow{to(protoUDP, vip, vip), to(protoUDP, "10.96.0.77:53", x)}
	apply(nil) // a resync
	if len(table.flows) != 1 || table.flows[0].translated() == false {
		t.Errorf("flows %v left, want the one that somebody else made since", table.flows)
	}
	if diff := cmp.Diff([]uint64{0, 1, 0, 1, 0}, inner.from); diff != "" {
		t.Errorf("service ports that the backend was told it has (-want +got):\n%s", diff)
	}
}

// All flows are looked at once, in the first Apply, and then what changes.
func TestWrapLooksAtChanges(t *testing.T) {
	inner, table := &recorder{}, &fakeTable{}
	w := newCleaner(Options{}, table).Wrap(inner)
	one := proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a)))
	two := proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a)), port("ntp", v1.ProtocolUDP, list(vip2), list(a)))
	for i, step := range []struct {
		old, new proxy.Snapshot
		dumps    int // flows to each frontend that counts, and answers from it
	}{{proxy.Snapshot{}, one, 2}, {one, one, 0}, {one, two, 2}, {proxy.Snapshot{}, two, 4}, {two, two, 0}} {
		table.dumps = 0
		if err := w.Apply(t.Context(), step.old, step.new); err != nil {
			t.Fatal(err)
		}
		if table.dumps != step.dumps || inner.to.Len() != step.new.Len() {
			t.Errorf("step %d: %d dumps, and the backend has %d service ports, want %d and %d", i, table.dumps, inner.to.Len(), step.dumps, step.new.Len())
		}
	}
}

func (*watched) CheckNode(proxy.Snapshot) []*proxy.Problem { return []*proxy.Problem{{Field: "a"}} }

// What the backend finds at the node, the wrapped one finds.
func TestWrapFindsWhatTheBackendFinds(t *testing.T) {
	for want, b := range map[int]proxy.Backend{0: &recorder{}, 1: &watched{}} {
		c, ok := newCleaner(Options{}, &fakeTable{}).Wrap(b).(interface {
			CheckNode(s proxy.Snapshot) []*proxy.Problem
		})
		if !ok {
			t.Fatal("a wrapped backend does not look at the node")
		}
		if got := c.CheckNode(proxy.Snapshot{}); len(got) != want {
			t.Errorf("%T: got %d problems, want %d", b, len(got), want)
		}
	}
}

func TestWrapTellsOfFailedCleanup(t *testing.T) {
	broken := errors.New("broken")
	if err := newCleaner(Options{}, &fakeTable{}).Wrap(&recorder{err: broken}).Cleanup(t.Context()); !errors.Is(err, broken) {
		t.Errorf("got error %v, want %v", err, broken)
	}
}

// An endpoint that has left the API since is a reason to look, though nobody meddled.
func TestWrapDriftsWithTheAPI(t *testing.T) {
	inAPI := true
	c := newCleaner(Options{TCP: ResetTCP, InAPI: func(proxy.ServicePortName, netip.AddrPort) bool { return inAPI }}, &fakeTable{})
	d, ok := c.Wrap(&watched{}).(proxy.DriftChecker)
	if !ok {
		t.Fatal("a wrapped backend does not tell of drift")
	}
	mustClean(t, c, proxy.NewSnapshot(node(), port("web", v1.ProtocolTCP, list(vip), list(a))), proxy.NewSnapshot(node(), port("web", v1.ProtocolTCP, list(vip), nil)))
	for _, inAPI = range []bool{true, false} {
		if got := d.Drifted(t.Context()); got == inAPI {
			t.Errorf("the endpoint is in the API: %v; drifted is %v, want %v", inAPI, got, !inAPI)
		}
	}
}
