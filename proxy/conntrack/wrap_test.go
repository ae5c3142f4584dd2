package conntrack

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// recorder is a backend that notes from where it was asked to go on.
type recorder struct {
	from []uint64
	err  error
}

func (r *recorder) Apply(_ context.Context, old, _ proxy.Snapshot) error {
	r.from = append(r.from, uint64(old.Len()))
	return r.err
}

func (r *recorder) Cleanup(context.Context) error { return nil }

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
	table.flows = []flow{to(protoUDP, vip, vip), to(protoUDP, "10.96.0.77:53", x)}
	apply(nil) // a resync
	if len(table.flows) != 1 || table.flows[0].translated() == false {
		t.Errorf("flows %v left, want the one that somebody else made since", table.flows)
	}
	if diff := cmp.Diff([]uint64{0, 1, 0, 1, 0}, inner.from); diff != "" {
		t.Errorf("service ports that the backend was told it has (-want +got):\n%s", diff)
	}
}
