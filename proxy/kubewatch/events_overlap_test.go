package kubewatch

import (
	"net/netip"
	"testing"

	"k8s.io/client-go/tools/cache"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestEventsWhileAnotherCallWaits checks that a call of AwaitSynced that waits for former event
// handlers removes nothing when it returns, and does not tell the Handler that it has all objects.
func TestEventsWhileAnotherCallWaits(t *testing.T) {
	theirIP, newIP := netip.MustParseAddr("10.96.0.66"), netip.MustParseAddr("10.96.0.67")
	r := newRecorder()
	e := &Events{Handler: r, NodeName: "n1"}
	add := func() {
		t.Helper()
		services, slices, nodes := e.Services(), e.EndpointSlices(), e.Nodes()
		services.OnAdd(service("web", "10.96.0.1"), true)
		services.OnAdd(theirs("theirs", "other", theirIP.String()), true)
		slices.OnAdd(slice("web-1", "10.0.0.1"), true)
		nodes.OnAdd(objects.Node("n1", "a"), true)
	}
	await := func(during func()) error {
		return e.AwaitSynced(t.Context(), func() bool { during(); return true })
	}
	add()
	if err := await(func() { e.Services() }); err == nil || r.get().synced != 0 {
		t.Errorf("before the first sync: got error %v and %d calls of Synced, want an error and none", err, r.get().synced)
	}
	add()
	if err := await(func() {}); err != nil || r.get().synced != 1 {
		t.Fatalf("got error %v and %d calls of Synced, want none and one", err, r.get().synced)
	}
	err := await(func() { e.Services(); e.EndpointSlices(); e.Nodes() })
	if s := r.get(); err == nil || s.removals != 0 || len(s.services) != 1 || len(s.slices) != 1 || s.zone != "a" {
		t.Errorf("with new event handlers: got error %v and %+v, want an error and all objects", err, s)
	}
	if !e.Foreign(theirIP) || !e.Foreign(newIP) {
		t.Error("with new event handlers: an address is not foreign, want that all may be")
	}
	add()
	if err := await(func() {}); err != nil || !e.Foreign(theirIP) || e.Foreign(newIP) {
		t.Errorf("synced again: got error %v, want none, and the address of the one Service of another proxy", err)
	}
}

// TestEventsKeepRangesOfFormerInformers checks that AwaitSynced without the registration of ServiceCIDRs
// leaves the ranges alone until the new informer has some, and that a later call with it removes
// those that exist no more.
func TestEventsKeepRangesOfFormerInformers(t *testing.T) {
	r := newRecorder()
	e := &Events{Handler: r}
	await := func(during func()) {
		t.Helper()
		testenv.NoError(t, e.AwaitSynced(t.Context(), func() bool { during(); return true }))
	}
	e.ServiceCIDRs().OnAdd(cidr("a", "10.96.0.0/16"), true)
	e.Services()
	await(func() {})
	e.Services()
	var h cache.ResourceEventHandler
	await(func() { h = e.ServiceCIDRs() })
	if s := r.get(); len(s.cidrs) != 1 {
		t.Errorf("with a new event handler during the call: got %v, want the range of the former", s.cidrs)
	}
	await(func() {})
	if s := r.get(); len(s.cidrs) != 1 {
		t.Errorf("before the new informer has a range: got %v, want the one of the former", s.cidrs)
	}
	h.OnAdd(cidr("b", "10.97.0.0/16"), true)
	if s := r.get(); len(s.cidrs) != 2 {
		t.Errorf("before a call that waits for it: got %v, want both ranges", s.cidrs)
	}
	await(func() {})
	if s := r.get(); len(s.cidrs) != 1 || s.cidrs[0] != netip.MustParsePrefix("10.97.0.0/16") {
		t.Errorf("after it: got %v, want the new range", s.cidrs)
	}
}
