package ipvs

import (
	"maps"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

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

// Node ports move exactly if a frontend begins or ends to have the number of one of them at an
// address of the node.
func TestExactFrontends(t *testing.T) {
	e := newExactFrontends([]netip.Addr{nodeAddress()})
	for i, step := range []struct {
		ports   []*proxy.ServicePort
		isMoved bool
	}{
		{ports: []*proxy.ServicePort{atNode(0, 80, 0), atNode(1, 0, 30080)}},
		{ports: []*proxy.ServicePort{atNode(0, 81, 0), atNode(1, 0, 30080)}},
		{ports: []*proxy.ServicePort{atNode(0, 30080, 0), atNode(1, 0, 30080)}, isMoved: true},
		{ports: []*proxy.ServicePort{atNode(0, 30080, 0), atNode(1, 0, 30080), atNode(2, 30080, 0)}},
		{ports: []*proxy.ServicePort{atNode(1, 0, 30080), atNode(2, 30080, 0)}},
		{ports: []*proxy.ServicePort{atNode(0, 30080, 0), atNode(1, 0, 30080)}},
		{ports: []*proxy.ServicePort{atNode(1, 0, 30080)}, isMoved: true},
		{ports: []*proxy.ServicePort{atNode(0, 30080, 0)}, isMoved: true}, // the address moves in one change
		{ports: []*proxy.ServicePort{atNode(0, 30080, 30080)}},
		{ports: []*proxy.ServicePort{atNode(0, 0, 30080)}, isMoved: true},
		{},
	} {
		if _, got := e.update(proxy.NewSnapshot(stagetest.Node(), step.ports...)); got != step.isMoved {
			t.Errorf("step %d: node ports move: got %v, want %v", i, got, step.isMoved)
		}
	}
	if len(e.at)+len(e.nodePorts) > 0 {
		t.Errorf("without service ports: got %v and %v, want nothing", e.at, e.nodePorts)
	}
}

// Whatever the order of changes, the counts are those of the last snapshot.
func TestExactFrontendsByChanges(t *testing.T) {
	random := testenv.Random(t)
	e := newExactFrontends([]netip.Addr{nodeAddress()})
	number := func() uint16 { return uint16(random.IntN(3)) }
	for range 300 {
		var ports []*proxy.ServicePort
		for i := range 4 {
			if random.IntN(3) > 0 {
				ports = append(ports, atNode(i, number(), number()))
			}
		}
		before := maps.Clone(e.at)
		isOther, isMoved := e.update(proxy.NewSnapshot(stagetest.Node(), ports...))
		fresh := newExactFrontends(e.host)
		fresh.update(proxy.NewSnapshot(stagetest.Node(), ports...))
		if same := maps.EqualFunc(before, fresh.at, func(int, int) bool { return true }); isOther == same {
			t.Fatalf("frontends before %v, after %v: got isOther %v", before, fresh.at, isOther)
		}
		if !maps.Equal(e.at, fresh.at) || !maps.Equal(e.nodePorts, fresh.nodePorts) {
			t.Fatalf("got %v and %v, want %v and %v", e.at, e.nodePorts, fresh.at, fresh.nodePorts)
		}
		for n := range uint16(3) {
			f := frontend{key{protocol: ipaddr.TCP, addr: netip.AddrPortFrom(e.host[0], n)}}
			if (before[f] > 0) != (fresh.at[f] > 0) && fresh.nodePorts[nodePortAt(f)] > 0 && !isMoved {
				t.Fatalf("frontend at %v: node ports stay, want them to move", f.addr)
			}
		}
	}
}

// A service port whose node port has the number of its load balancer renders no object twice.
func TestNodePortOfSamePort(t *testing.T) {
	r := testRenderer(Schedulers()...)
	r.host = []netip.Addr{nodeAddress()}
	exact := newExactFrontends(r.host)
	p := atNode(0, 30080, 30080)
	exact.update(proxy.NewSnapshot(stagetest.Node(), p))
	r.exact = exact.at
	seen := map[key]bool{}
	for _, o := range r.render(stagetest.Node(), p, nil) {
		if seen[o.Key] && !o.Key.Shared() {
			t.Errorf("got object %+v twice", o.Key)
		}
		seen[o.Key] = true
	}
}
