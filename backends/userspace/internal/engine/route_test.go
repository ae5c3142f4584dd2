package engine

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func someAddr(r *rand.Rand, six bool) netip.Addr {
	n := byte(1 + r.IntN(6))
	if six {
		return netip.AddrFrom16([16]byte{0: 0xfd, 15: n})
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, n})
}

// someEnd gives one of those, or now and then a loopback address.
func someEnd(r *rand.Rand, six bool, port uint16) netip.AddrPort {
	a := someAddr(r, six)
	if r.IntN(8) == 0 {
		a = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if six {
			a = netip.IPv6Loopback()
		}
	}
	return netip.AddrPortFrom(a, port)
}

func someRoute(r *rand.Rand) proxy.TrafficRoute {
	return proxy.TrafficRoute{
		Action: []proxy.Action{proxy.Forward, proxy.Forward, proxy.Reject, proxy.Drop}[r.IntN(4)],
		Pool:   proxy.Pool(r.IntN(2)), Masquerade: proxy.Masquerade(r.IntN(3)),
	}
}

func somePort(r *rand.Rand, name string, six bool) *proxy.ServicePort {
	p := &proxy.ServicePort{Name: proxy.ServicePortName{Port: name, Protocol: v1.ProtocolTCP, Family: v1.IPv4Protocol}}
	if r.IntN(2) == 0 {
		p.Name.Protocol = v1.ProtocolUDP
	}
	pool := func() []*endpoints.Endpoint {
		set := map[netip.AddrPort]bool{}
		for range 1 + r.IntN(3) {
			set[netip.AddrPortFrom(someAddr(r, six), 8080)] = true
		}
		var all []netip.AddrPort
		for a := range set {
			all = append(all, a)
		}
		return sortedPool(all...)
	}
	p.Cluster, p.Local = pool(), pool()
	for range 1 + r.IntN(3) {
		f := proxy.Frontend{Addr: netip.AddrPortFrom(someAddr(r, six), uint16(80+r.IntN(2))), FromInside: someRoute(r), FromOutside: someRoute(r)}
		if r.IntN(3) == 0 {
			f.Kind, f.Addr = proxy.NodePort, netip.AddrPortFrom(unspecified(f.Addr.Addr()), f.Addr.Port())
		}
		if r.IntN(3) == 0 {
			f.Restricted = true
			f.AllowedSources = []netip.Prefix{netip.PrefixFrom(someAddr(r, six), 30+r.IntN(2))}
		}
		p.Frontends = append(p.Frontends, f)
	}
	return p
}

const podInterface = "pod0"

// someWorld gives ports of which no two claim one frontend.
func someWorld(r *rand.Rand) proxy.Snapshot {
	taken := map[frontendKey]bool{}
	var ports []*proxy.ServicePort
	for i := range 1 + r.IntN(5) {
		p := somePort(r, fmt.Sprint(i), r.IntN(2) == 0)
		var kept []proxy.Frontend
		for _, f := range p.Frontends {
			if k := (frontendKey{f.Addr, p.Name.Protocol}); !taken[k] {
				taken[k] = true
				kept = append(kept, f)
			}
		}
		p.Frontends = kept
		ports = append(ports, p)
	}
	node := &proxy.Node{Addresses: []netip.Addr{someAddr(r, false), someAddr(r, true)}}
	node.LocalTraffic.Interface = podInterface
	if r.IntN(2) == 0 {
		node.LocalTraffic.Sources = []netip.Prefix{netip.PrefixFrom(someAddr(r, false), 31).Masked()}
	}
	node.NodePorts.All = r.IntN(3) == 0
	if r.IntN(2) == 0 {
		node.NodePorts.Prefixes = []netip.Prefix{netip.PrefixFrom(someAddr(r, r.IntN(2) == 0), 30).Masked()}
	}
	return proxy.NewSnapshot(node, ports...)
}

// The engine decides as the specification does, whatever came before.
func TestDecisionsAreThoseOfTheSpecification(t *testing.T) {
	r := testenv.Random(t)
	e, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	forwarded := 0
	for range 1000 {
		s := someWorld(r)
		e.Apply(s)
		for range 40 {
			six := r.IntN(2) == 0
			f := Flow{
				Protocol: []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP}[r.IntN(2)],
				Client:   someEnd(r, six, 1234), Frontend: someEnd(r, six, uint16(80+r.IntN(2))),
				Origin: []Origin{ByAddress, Pod, Node, Outside}[r.IntN(4)],
			}
			if compareWithRoute(t, e, s, f) {
				forwarded++
			}
		}
	}
	if forwarded < 1000 {
		t.Errorf("only %d of 40000 flows were to be forwarded; the test shows nothing", forwarded)
	}
	e.Apply(proxy.NewSnapshot(&proxy.Node{}))
	if n, m := len(e.services), len(e.frontends); n != 0 || m != 0 {
		t.Errorf("with no Services, %d services and %d frontends are left", n, m)
	}
}

// compareWithRoute says whether the flow is forwarded, by both.
func compareWithRoute(t *testing.T, e *Engine, s proxy.Snapshot, f Flow) bool {
	t.Helper()
	p := proxy.Packet{Protocol: f.Protocol, Source: f.Client, Destination: f.Frontend, ToNode: true}
	switch source := f.Client.Addr(); f.Origin {
	case ByAddress:
		p.FromNode = source.IsLoopback() || slices.Contains(s.Node().Addresses, source)
	case Pod:
		p.Interface = podInterface
	case Node:
		p.FromNode = true
	case Outside:
	}
	v := proxy.Route(s, p)
	d := e.decide(f)
	if d.action != proxy.Forward && v.Action != proxy.Forward {
		return false // what else becomes of a packet, the kernel decides
	}
	var got []proxy.Destination
	for _, x := range d.endpoints {
		if d.action == proxy.Forward {
			got = append(got, proxy.Destination{Addr: x.Addr, Masquerade: !d.from(x).IsValid()})
		}
	}
	if fmt.Sprint(d.action, got) != fmt.Sprint(v.Action, v.Endpoints) {
		t.Fatalf("%+v: got %v %v, want %v %v, since %q", f, d.action, got, v.Action, v.Endpoints, v.Reasons)
	}
	return true
}

// A pool without endpoints, from which nobody can choose, is no reason to panic.
func TestEmptyPoolsAreNotServed(t *testing.T) {
	w := newWorld(t, Config{}, v1.ProtocolTCP)
	p := *w.port
	route := proxy.TrafficRoute{Action: proxy.Forward}
	p.Frontends = []proxy.Frontend{{Addr: memoryFrontend, FromInside: route, FromOutside: route}}
	w.Apply(proxy.NewSnapshot(&proxy.Node{}, &p))
	if d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend}); d.action != proxy.Drop {
		t.Errorf("got %v, want %v", d.action, proxy.Drop)
	}
}

// Where the door does not tell, the address says whose a connection is: a pod's, the
// node's, or that of a network outside which is one client in all.
func TestAddressesTellClientsApart(t *testing.T) {
	w := newWorld(t, Config{}, v1.ProtocolTCP)
	pod, node, other := "fd00:10::1:2:3:4", "fd00:20::1:2:3:4", "2001:db8:0:1:2:3:4:5"
	wants := func(when string, want map[string]string) {
		t.Helper()
		for addr, key := range want {
			f := Flow{Protocol: v1.ProtocolTCP, Client: netip.AddrPortFrom(netip.MustParseAddr(addr), 1), Frontend: memoryFrontend}
			if got := w.holderOf(f).client; got != netip.MustParseAddr(key) {
				t.Errorf("%s: %s is the client %v, want %s", when, addr, got, key)
			}
		}
	}
	wants("before anything is known", map[string]string{pod: "fd00:10::", node: "fd00:20::", other: "2001:db8:0:1::"})
	route := proxy.TrafficRoute{Action: proxy.Forward}
	p := *w.port
	p.Cluster = sortedPool(memoryEndpoint)
	p.Frontends = []proxy.Frontend{{Addr: memoryFrontend, FromInside: route, FromOutside: route}}
	w.Apply(proxy.NewSnapshot(&proxy.Node{
		Addresses: []netip.Addr{netip.MustParseAddr(node)}, LocalTraffic: proxy.LocalTraffic{Sources: []netip.Prefix{netip.MustParsePrefix("fd00:10::/64")}},
	}, &p))
	known := map[string]string{pod: pod, node: node, other: "2001:db8:0:1::"}
	wants("when the node is known", known)
	for addr, key := range known { // what endpoints see, too
		d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: netip.AddrPortFrom(netip.MustParseAddr(addr), 1), Frontend: memoryFrontend})
		if got := d.view(p.Cluster[0]).source; got != netip.MustParseAddr(key) {
			t.Errorf("what %s experiences is that of %v, want %s", addr, got, key)
		}
	}
}
