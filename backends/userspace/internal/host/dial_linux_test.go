package host

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// The dialer knows the frontends of the snapshot: their addresses, and node ports at the
// addresses of the node.
func TestFrontendsOfTheDialer(t *testing.T) {
	t.Parallel()
	d := NewNodeDialer(nil)
	d.isLocal = func(netip.Addr) bool { return false }
	var last proxy.Snapshot
	for _, step := range []struct {
		next proxy.Snapshot
		want []string // of TCP
	}{
		{proxy.NewSnapshot(snapshots.Node("192.0.2.1"), snapshots.Port("web", "10.96.0.1:80 0.0.0.0:30000"), snapshots.Port("web/UDP", "10.96.0.2:80")), []string{"10.96.0.1:80", "192.0.2.1:30000"}},
		{proxy.NewSnapshot(snapshots.Node("192.0.2.2", "2001:db8::1"), snapshots.Port("web", "10.96.0.2:80 [::]:30000 0.0.0.0:30001")), []string{"10.96.0.2:80", "192.0.2.2:30001", "[2001:db8::1]:30000"}},
		{proxy.NewSnapshot(snapshots.Node("192.0.2.1", "192.0.2.2")), nil},
	} {
		d.Follow(last, step.next)
		last = step.next
		var got []string
		for _, at := range []string{
			"10.96.0.1:80", "10.96.0.2:80", "192.0.2.1:30000", "192.0.2.1:30001", "192.0.2.2:30000", "192.0.2.2:30001", "[2001:db8::1]:30000", "[2001:db8::1]:30001",
		} {
			if d.IsFrontend(v1.ProtocolTCP, netip.MustParseAddrPort(at)) {
				got = append(got, at)
			}
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("frontends (-want +got):\n%s", diff)
		}
	}
	if len(d.frontends) != 0 {
		t.Errorf("without Services: got frontends %v, want none", d.frontends)
	}
}
