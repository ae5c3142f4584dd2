package host

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// The dialer knows the frontends of the snapshot: their addresses, and node ports at the
// addresses of the node.
func TestFrontendsOfTheDialer(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddrPort
	port := func(protocol v1.Protocol, at ...string) *proxy.ServicePort {
		p := &proxy.ServicePort{Name: proxy.ServicePortName{Port: at[0], Protocol: protocol}}
		for _, a := range at {
			p.Frontends = append(p.Frontends, proxy.Frontend{Addr: addr(a)})
		}
		return p
	}
	node := func(addrs ...string) *proxy.Node {
		n := &proxy.Node{}
		for _, a := range addrs {
			n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
		}
		return n
	}
	d := NewNodeDialer(nil)
	d.isLocal = func(netip.Addr) bool { return false }
	var last proxy.Snapshot
	for _, step := range []struct {
		next proxy.Snapshot
		want []string // of TCP
	}{
		{proxy.NewSnapshot(node("192.0.2.1"), port(v1.ProtocolTCP, "10.96.0.1:80", "0.0.0.0:30000"), port(v1.ProtocolUDP, "10.96.0.2:80")), []string{"10.96.0.1:80", "192.0.2.1:30000"}},
		{proxy.NewSnapshot(node("192.0.2.2", "2001:db8::1"), port(v1.ProtocolTCP, "10.96.0.2:80", "[::]:30000", "0.0.0.0:30001")), []string{"10.96.0.2:80", "192.0.2.2:30001", "[2001:db8::1]:30000"}},
		{proxy.NewSnapshot(node("192.0.2.1", "192.0.2.2")), nil},
	} {
		d.Follow(last, step.next)
		last = step.next
		var got []string
		for _, at := range []string{
			"10.96.0.1:80", "10.96.0.2:80", "192.0.2.1:30000", "192.0.2.1:30001", "192.0.2.2:30000", "192.0.2.2:30001", "[2001:db8::1]:30000", "[2001:db8::1]:30001",
		} {
			if d.IsFrontend(v1.ProtocolTCP, addr(at)) {
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
