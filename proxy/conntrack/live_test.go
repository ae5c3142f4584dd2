package conntrack

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// IPVS finds a node port of an earlier process at each address of the node. Flows to it stay while
// the node port exists, and end with it.
func TestNodePortFoundAtAddress(t *testing.T) {
	t.Parallel()
	at := to(protoUDP, "192.0.2.1:30053", a)
	for _, tc := range []struct {
		frontends []string
		want      []flow
	}{{list(vip, ":30053"), []flow{at}}, {list(vip), nil}} {
		table := &fakeTable{flows: []flow{at}}
		c := newCleaner(Options{}, table)
		c.AddFrontends(left(v1.ProtocolUDP, vip, "192.0.2.1:30053"))
		mustFollow(t, c, proxy.NewSnapshot(node("192.0.2.0/24"), port("dns", v1.ProtocolUDP, tc.frontends, list(a))), true)
		wantFlows(t, table, tc.want...)
	}
}

// A full sync of the same process, as after drift, spares the flows that userspace carries. At the start of
// a process, they are flows of an earlier process.
func TestFullSyncSparesCarriedFlows(t *testing.T) {
	t.Parallel()
	held := proxy.NewSnapshot(node(), routed())
	table := &fakeTable{flows: []flow{by(outside, "0.64.3.1:4000")}}
	c := newCleaner(Options{}, table)
	mustFollow(t, c, held, true)
	wantFlows(t, table)
	table.flows = []flow{by(outside, "0.64.3.1:4000")}
	mustFollow(t, c, held, true)
	wantFlows(t, table, by(outside, "0.64.3.1:4000"))
}

// An endpoint may have the address and port of its frontend: an external IP that is the node's own, before a
// pod in the network of the host. Its flows are not translated, and end with it.
func TestEndpointAtItsFrontend(t *testing.T) {
	t.Parallel()
	old := proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip2), list(vip2, a)))
	for _, tc := range []struct {
		endpoints []string
		want      []flow
	}{{list(a), nil}, {list(vip2), []flow{to(protoUDP, vip2, vip2)}}} {
		table := &fakeTable{flows: []flow{to(protoUDP, vip2, vip2)}}
		mustClean(t, newCleaner(Options{}, table), old, proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip2), tc.endpoints)))
		wantFlows(t, table, tc.want...)
	}
}

// A program that served a frontend before may answer long after Clean. A later RemoveStale removes the flow that
// its reply began, until there is none.
func TestLateReplies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		table := &fakeTable{flows: []flow{to(protoUDP, vip, vip)}}
		c := newCleaner(Options{}, table)
		held := proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a)))
		mustFollow(t, c, proxy.NewSnapshot(node()), true)
		mustFollow(t, c, held, false)
		wait := retryTime
		for _, reply := range []flow{from(protoUDP, vip), from(protoUDP, vip), to(protoUDP, vip, vip)} {
			wantFlows(t, table)
			table.flows = []flow{reply}
			time.Sleep(wait - 1)
			if c.RetryDue() {
				t.Errorf("before %v, when late replies may have come: got RetryDue true, want false", wait)
			}
			time.Sleep(time.Nanosecond)
			wait *= 2
			if !c.RetryDue() {
				t.Fatal("after the time for late replies: got RetryDue false, want true")
			}
			mustFollow(t, c, held, false)
		}
		wantFlows(t, table)
		time.Sleep(time.Hour)
		if c.RetryDue() {
			t.Error("after a RemoveStale that found no reply: got RetryDue true, want false")
		}
	})
}

// Neither an error nor another cleaning of all frontends makes the Cleaner forget the look for late replies, and
// changes in a row do not put it off. A flow that was removed shortly before the look gets another one.
func TestLookIsNotLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		table := &fakeTable{flows: []flow{to(protoUDP, vip, vip)}}
		c := newCleaner(Options{}, table)
		held := proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a)))
		mustFollow(t, c, held, true)
		table.flows, table.err = []flow{to(protoUDP, vip, vip)}, errors.New("no memory")
		if err := c.RemoveStale(t.Context(), held, true); err == nil {
			t.Error("RemoveStale while the table fails: got no error")
		}
		table.err = nil
		mustFollow(t, c, held, true)
		time.Sleep(retryTime * 2 / 3)
		table.flows = []flow{to(protoUDP, vip, vip)}
		mustFollow(t, c, held, true)
		for _, wait := range []time.Duration{retryTime / 3, retryTime * 2 / 3} {
			if c.RetryDue() {
				t.Error("before the look: got RetryDue true, want false")
			}
			if time.Sleep(wait); !c.RetryDue() {
				t.Errorf("%v later: got RetryDue false, want true", wait)
			}
			if err := c.Clean(t.Context(), proxy.Snapshot{}, held); err != nil {
				t.Error(err)
			}
		}
		if time.Sleep(time.Hour); c.RetryDue() {
			t.Error("after the looks: got RetryDue true, want false")
		}
	})
}

// While somebody keeps sending from a frontend, the look for another client's old server comes no later.
func TestLookIsNotDelayed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		table := &fakeTable{flows: []flow{to(protoUDP, vip, vip)}}
		c := newCleaner(Options{}, table)
		held := proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a)))
		mustFollow(t, c, held, true)
		for wait := retryTime; wait <= 8*retryTime; wait *= 2 {
			time.Sleep(wait)
			table.flows = []flow{from(protoUDP, vip)}
			mustFollow(t, c, held, false)
			wantFlows(t, table)
		}
		ofSender := time.Now().Add(16 * retryTime)
		table.flows = []flow{to(protoUDP, vip, vip)}
		mustFollow(t, c, held, true)
		for _, at := range []time.Time{time.Now().Add(retryTime), ofSender} {
			wait := time.Until(at)
			time.Sleep(wait - time.Nanosecond)
			if c.RetryDue() {
				t.Errorf("before %v: got RetryDue true, want false", wait)
			}
			if time.Sleep(time.Nanosecond); !c.RetryDue() {
				t.Errorf("after %v: got RetryDue false, want true", wait)
			}
			mustFollow(t, c, held, false)
		}
	})
}
