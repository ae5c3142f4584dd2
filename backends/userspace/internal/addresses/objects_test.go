package addresses

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

func forward() proxy.TrafficRoute { return proxy.TrafficRoute{Action: proxy.Forward} }
func reject() proxy.TrafficRoute  { return proxy.TrafficRoute{Action: proxy.Reject} }
func drop() proxy.TrafficRoute    { return proxy.TrafficRoute{Action: proxy.Drop} }

// Each frontend needs its address and, unless all clients are rejected, a listener. Node ports
// have one at each address of the node that serves them.
func TestRender(t *testing.T) {
	t.Parallel()
	node := &proxy.Node{
		Addresses: snapshots.Addrs("192.0.2.1", "198.51.100.1", "2001:db8::1"),
		NodePorts: proxy.NodePortAddresses{Prefixes: snapshots.Prefixes("192.0.2.0/24", "::/0")},
	}
	for name, c := range map[string]struct {
		kind            proxy.FrontendKind
		at              string
		inside, outside proxy.TrafficRoute
		family          v1.IPFamily
		await           bool
		want            []string
	}{
		"forwarded":             {proxy.ClusterIP, "10.96.0.1:80", forward(), forward(), v1.IPv4Protocol, false, []string{"10.96.0.1", "10.96.0.1:80/TCP"}},
		"forwarded from inside": {proxy.ExternalIP, "10.97.0.1:80", forward(), drop(), v1.IPv4Protocol, false, []string{"10.97.0.1", "10.97.0.1:80/TCP"}},
		"rejected":              {proxy.ClusterIP, "10.96.0.1:80", reject(), reject(), v1.IPv4Protocol, false, []string{"10.96.0.1"}},
		"rejected, waiting":     {proxy.ClusterIP, "10.96.0.1:80", reject(), reject(), v1.IPv4Protocol, true, []string{"10.96.0.1", "10.96.0.1:80/TCP"}},
		"dropped":               {proxy.LoadBalancer, "10.98.0.1:80", drop(), drop(), v1.IPv4Protocol, false, []string{"10.98.0.1", "10.98.0.1:80/TCP"}},
		"IPv6":                  {proxy.ClusterIP, "[fd00::1]:80", forward(), forward(), v1.IPv6Protocol, false, []string{"fd00::1", "[fd00::1]:80/TCP"}},
		"node port":             {proxy.NodePort, "0.0.0.0:30080", forward(), forward(), v1.IPv4Protocol, false, []string{"192.0.2.1:30080/TCP"}},
		"node port of IPv6":     {proxy.NodePort, "[::]:30080", forward(), forward(), v1.IPv6Protocol, false, []string{"[2001:db8::1]:30080/TCP"}},
		"rejected node port":    {proxy.NodePort, "0.0.0.0:30080", reject(), reject(), v1.IPv4Protocol, false, nil},
	} {
		p := &proxy.ServicePort{Frontends: []proxy.Frontend{{Kind: c.kind, Addr: netip.MustParseAddrPort(c.at), FromInside: c.inside, FromOutside: c.outside}}}
		p.Name.Family, p.Name.Protocol = c.family, v1.ProtocolTCP
		capture := New(Config{Serving: Serving{Families: []v1.IPFamily{c.family}, AwaitEndpoints: c.await}})
		var got []string
		for _, o := range capture.Render(backends.Env{Node: node}, p, nil) {
			if o.Key.isAddress() {
				got = append(got, o.Key.addr.String())
			} else {
				got = append(got, fmt.Sprintf("%v/%s", o.Key.at(), o.Key.protocol))
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		if other := New(Config{}).Render(backends.Env{Node: node}, p, nil); len(other) != 0 {
			t.Errorf("%s, of another family: got %v, want nothing", name, other)
		}
	}
	if got := New(Config{}).Render(backends.Env{Node: node}, nil, nil); len(got) != 0 {
		t.Errorf("static objects: got %v, want none", got)
	}
}

// Only service ports of protocols that have sockets can be served.
func TestCheck(t *testing.T) {
	t.Parallel()
	c := New(Config{Serving: Serving{Families: []v1.IPFamily{v1.IPv4Protocol}}})
	for protocol, ok := range map[v1.Protocol]bool{v1.ProtocolTCP: true, v1.ProtocolUDP: true, v1.ProtocolSCTP: false} {
		p := &proxy.ServicePort{}
		p.Name.Family, p.Name.Protocol = v1.IPv4Protocol, protocol
		if err := c.Check(backends.Env{}, p); (err == nil) != ok {
			t.Errorf("%s: got error %v", protocol, err)
		}
	}
}
