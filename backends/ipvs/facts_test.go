package ipvs

import (
	"maps"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// nodeAddress is an address of the node.
func nodeAddress() netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, 7}) }

// atNode returns service port i with a load-balancer IP that is an address of the node, and a
// node port; zero means without.
func atNode(i int, port, nodePort uint16) *proxy.ServicePort {
	p := stagetest.Port(v1.IPv4Protocol, i, 1)
	p.Frontends = p.Frontends[:1]
	add := func(kind proxy.FrontendKind, addr netip.Addr, port uint16) {
		if port != 0 {
			f := p.Frontends[0]
			f.Kind, f.Addr = kind, netip.AddrPortFrom(addr, port)
			p.Frontends = append(p.Frontends, f)
		}
	}
	add(proxy.LoadBalancer, nodeAddress(), port)
	add(proxy.NodePort, netip.IPv4Unspecified(), nodePort)
	return p
}

// A node port leaves an address of the node exactly while another frontend has its number there, whatever the
// order of changes; then no object is rendered twice, and the purity of facts is that of their snapshot.
func TestExactFrontends(t *testing.T) {
	random := testenv.Random(t)
	e := newExactFrontends([]netip.Addr{nodeAddress()})
	r, host := testRenderer(t), []netip.Addr{nodeAddress()}
	number := func() uint16 { return uint16(random.IntN(3)) }
	var before facts
	for range 300 {
		var ports []*proxy.ServicePort
		exact, nodePorts := map[uint16]bool{}, map[uint16]bool{}
		for i := range 4 {
			if at, nodePort := number(), number(); random.IntN(3) > 0 {
				ports = append(ports, atNode(i, at, nodePort))
				exact[at], nodePorts[nodePort] = true, true
			}
		}
		kept := maps.Clone(before.taken)
		f := facts{host: host, taken: e.taken(proxy.NewSnapshot(stagetest.Node(), ports...))}
		for n := range uint16(3) {
			at := netip.AddrPortFrom(nodeAddress(), n)
			if got, want := f.taken[frontend{key{protocol: ipaddr.TCP, addr: at}}], n > 0 && exact[n] && nodePorts[n]; got != want {
				t.Fatalf("%v with frontends %v and node ports %v: taken: got %t, want %t", at, exact, nodePorts, got, want)
			}
		}
		if !maps.Equal(kept, before.taken) {
			t.Fatalf("facts of the snapshot before: got %v, want them to stay %v", before.taken, kept)
		}
		before = f
		for _, p := range ports {
			seen := map[key]bool{}
			for _, o := range r.render(backends.Env{Node: stagetest.Node(), Facts: f}, p, nil) {
				if seen[o.Key] && !o.Key.Shared() {
					t.Errorf("got object %+v twice", o.Key)
				}
				seen[o.Key] = true
			}
		}
	}
	if e.taken(proxy.NewSnapshot(stagetest.Node())); len(e.at)+len(e.nodePorts) > 0 {
		t.Errorf("without service ports: got %v and %v, want nothing", e.at, e.nodePorts)
	}
}
