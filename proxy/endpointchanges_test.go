package proxy

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
)

// at returns endpoints by the last number of their address.
func at(numbers ...byte) (all []*endpoints.Endpoint) {
	for _, n := range numbers {
		all = append(all, &endpoints.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 80)})
	}
	return all
}

func TestChangeEndpoints(t *testing.T) {
	for name, c := range map[string]struct {
		old, new     *ServicePort
		gained, lost []*endpoints.Endpoint
	}{
		"none":     {},
		"equal":    {old: &ServicePort{Cluster: at(1, 2)}, new: &ServicePort{Cluster: at(1, 2)}},
		"new port": {new: &ServicePort{Cluster: at(2, 1), Local: at(1)}, gained: at(1, 2)},
		"removed":  {old: &ServicePort{Cluster: at(1), Local: at(2), Draining: at(3)}, lost: at(1, 2, 3)},
		"both":     {old: &ServicePort{Cluster: at(1, 2)}, new: &ServicePort{Cluster: at(2, 3)}, gained: at(3), lost: at(1)},
		"drains":   {old: &ServicePort{Cluster: at(1, 2)}, new: &ServicePort{Cluster: at(2), Draining: at(1)}},
		"policy":   {old: &ServicePort{Cluster: at(1, 2)}, new: &ServicePort{Local: at(1)}, lost: at(2)},
	} {
		t.Run(name, func(t *testing.T) {
			gained, lost := Change{Old: c.old, New: c.new}.Endpoints()
			equal := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
			if diff := cmp.Diff(addressesOf(c.gained), gained, equal); diff != "" {
				t.Errorf("gained (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(addressesOf(c.lost), lost, equal); diff != "" {
				t.Errorf("lost (-want +got):\n%s", diff)
			}
		})
	}
}

// addressesOf returns the addresses of endpoints.
func addressesOf(all []*endpoints.Endpoint) (out []netip.AddrPort) {
	for _, e := range all {
		out = append(out, e.Addr)
	}
	return out
}

// TestHasEndpoint checks that a tracker knows endpoints that are in no pool, until they leave the
// API.
func TestHasEndpoint(t *testing.T) {
	tracker := newTestTracker()
	tracker.UpdateEndpointSlice(apiSlice("web-1", "web", "10.0.0.1", "10.0.0.2 U T"))
	name := portName("web")
	other := name
	other.Protocol = v1.ProtocolUDP
	for _, c := range []struct {
		name ServicePortName
		at   string
		want bool
	}{
		{name, "10.0.0.1:8080", true},
		{name, "10.0.0.2:8080", true}, // terminating
		{name, "10.0.0.2:81", false},
		{name, "10.0.0.3:8080", false},
		{other, "10.0.0.1:8080", false},
	} {
		if got := tracker.HasEndpoint(c.name, netip.MustParseAddrPort(c.at)); got != c.want {
			t.Errorf("HasEndpoint(%v, %s): got %t, want %t", c.name, c.at, got, c.want)
		}
	}
	tracker.DeleteEndpointSlice(objectName("web-1"))
	if tracker.HasEndpoint(name, netip.MustParseAddrPort("10.0.0.1:8080")) {
		t.Error("HasEndpoint after the slice was deleted: got true, want false")
	}
}
