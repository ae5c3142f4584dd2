package conntrack

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// A flow that cannot be removed, since another program has led it past the rules, is no
// reason to say that the rules are not there. It goes once it can.
func TestOffloadedFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stale := to(protoUDP, vip, a)
		table := &fakeTable{flows: []flow{stale, to(protoUDP, vip, x)}, err: errOffloaded, failing: func(f flow) bool { return f.server == stale.server }}
		var accounts [][2]int
		inner := &watched{}
		w := newCleaner(Options{Observe: func(a Account) { accounts = append(accounts, [2]int{a.Removed, a.Offloaded}) }}, table).Wrap(inner)
		one := proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(b)))
		apply := func() {
			t.Helper()
			if err := w.Apply(t.Context(), proxy.Snapshot{}, one); err != nil {
				t.Fatal(err)
			}
		}
		wantDrift := func(when string, want bool) {
			t.Helper()
			if got := drifted(t.Context(), w); got != want {
				t.Errorf("%s: drifted is %v, want %v", when, got, want)
			}
		}
		apply()
		wantDrift("at first", false)
		time.Sleep(offloadTime)
		wantDrift("when it may have been let go", true)
		apply()
		wantDrift("when it has not", false)
		table.err = nil
		time.Sleep(offloadTime)
		wantDrift("again", true)
		apply()
		time.Sleep(time.Hour)
		wantDrift("when it is gone", false)
		if want := [][2]int{{1, 1}, {0, 1}, {1, 0}}; !slices.Equal(accounts, want) || len(table.flows) != 0 {
			t.Errorf("flows removed and offloaded are %v, want %v; left are %v", accounts, want, table.flows)
		}
		if want := []uint64{0, 1, 1}; !slices.Equal(inner.from, want) {
			t.Errorf("the backend was told that it has %v service ports, want %v: nobody meddled", inner.from, want)
		}
	})
}

func drifted(ctx context.Context, b proxy.Backend) bool {
	d, ok := b.(proxy.DriftChecker)
	return ok && d.Drifted(ctx)
}
