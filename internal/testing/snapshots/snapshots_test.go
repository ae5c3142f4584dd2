package snapshots_test

import (
	"fmt"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// A service port with three frontends and two endpoints, made by hand.
func Example() {
	p := snapshots.Port("shop/dns:main/UDP", "10.96.0.10:53 :30053 lb=203.0.113.1:53", "10.1.0.2:5353 T @node-2", "10.1.0.1 local")
	fmt.Println(p.Name)
	for _, f := range p.Frontends {
		fmt.Println(f.Kind, f.Addr, f.FromOutside.Action)
	}
	for _, e := range p.Cluster {
		fmt.Println(e)
	}
	// Output:
	// shop/dns:main/UDP/IPv4
	// ClusterIP 10.96.0.10:53 forward
	// NodePort 0.0.0.0:30053 forward
	// LoadBalancer 203.0.113.1:53 forward
	// 10.1.0.1:8080 (ready, local)
	// 10.1.0.2:5353 (not ready, serving, terminating, on node-2)
}

// A service port by hand is what a tracker makes of the objects that it stands for, but for
// routes and names that the text does not have.
func TestPortIsLikeATrackers(t *testing.T) {
	s := snapshots.Of(t, proxy.TrackerOptions{NodeName: "node", NodePortAddresses: proxy.NodePortAddresses{All: true}},
		objects.Node("node", "", "192.0.2.1"),
		objects.Service("test/web", "fd00:96::1", objects.Ports("http 80:30080"), objects.ExternalIPs("2001:db8::1")),
		objects.Slice("test/web-1", "web", "fd00::2 @node", "fd00::1 @other"))
	want := snapshots.Port("web:http", "[fd00:96::1]:80 ext=[2001:db8::1]:80 [::]:30080", "fd00::2 @node local", "fd00::1 @other")
	got := snapshots.EachWith(s, snapshots.Routes(want.Frontends[0].FromInside, want.Frontends[0].FromOutside))
	if p, ok := got.Get(want.Name); !ok || !p.Equal(want) {
		t.Errorf("got %+v, want %+v", p, want)
	}
	if node := snapshots.Node("192.0.2.1"); !node.Equal(s.Node()) {
		t.Errorf("got node %+v, want %+v", node, s.Node())
	}
}

// EachWith leaves the original snapshot as it is.
func TestEachWithCopies(t *testing.T) {
	s := proxy.NewSnapshot(nil, snapshots.Port("web", "10.96.0.1:80", "10.1.0.1"))
	drop := proxy.TrafficRoute{Action: proxy.Drop}
	for p := range snapshots.EachWith(s, snapshots.Routes(drop, drop), snapshots.Pool()).All() {
		if p.Frontends[0].FromInside != drop || len(p.Cluster) != 0 {
			t.Errorf("got %+v, want a port that drops, without endpoints", p)
		}
	}
	for p := range s.All() {
		if p.Frontends[0].FromInside.Action != proxy.Forward || len(p.Cluster) != 1 {
			t.Errorf("the original: got %+v, want it unchanged", p)
		}
	}
}
