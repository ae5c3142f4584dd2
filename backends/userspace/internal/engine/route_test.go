package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func someAddr(r *rand.Rand, six bool) netip.Addr {
	n := byte(1 + r.IntN(6))
	if six {
		return netip.AddrFrom16([16]byte{0: 0xfd, 15: n})
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, n})
}

// someAddrPort returns an address of someAddr, or now and then a loopback address.
func someAddrPort(r *rand.Rand, six bool, port uint16) netip.AddrPort {
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
		return snapshots.At(all...)
	}
	p.Cluster, p.Local = pool(), pool()
	for range 1 + r.IntN(3) {
		f := proxy.Frontend{Addr: netip.AddrPortFrom(someAddr(r, six), uint16(80+r.IntN(2))), FromInside: someRoute(r), FromOutside: someRoute(r)}
		if r.IntN(3) == 0 {
			f.Kind, f.Addr = proxy.NodePort, netip.AddrPortFrom(ipaddr.Unspecified(ipaddr.FamilyOf(f.Addr.Addr())), f.Addr.Port())
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

// someSnapshot returns a snapshot in which no two service ports claim one frontend.
func someSnapshot(r *rand.Rand) proxy.Snapshot {
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

// The engine decides as proxy.Route does, whatever snapshots it had before.
func TestDecisionsAreThoseOfTheSpecification(t *testing.T) {
	t.Parallel()
	r := testenv.Random(t)
	e, err := New(Config{})
	testenv.NoError(t, err)
	defer e.Close()
	forwarded := 0
	for range 1000 {
		s := someSnapshot(r)
		e.Apply(s)
		for range 40 {
			six := r.IntN(2) == 0
			f := Flow{
				Protocol: []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP}[r.IntN(2)],
				Client:   someAddrPort(r, six, 1234), Frontend: someAddrPort(r, six, uint16(80+r.IntN(2))),
				Origin: []Origin{ByAddress, Pod, Node, Outside}[r.IntN(4)],
			}
			if compareWithRoute(t, e, s, f) {
				forwarded++
			}
		}
	}
	if forwarded < 1000 {
		t.Errorf("forwarded flows: got %d of 40000, want at least 1000 for a meaningful test", forwarded)
	}
	e.Apply(proxy.NewSnapshot(&proxy.Node{}))
	if n, m := len(e.services), len(e.frontends); n != 0 || m != 0 {
		t.Errorf("without Services: got %d services and %d frontends, want none", n, m)
	}
}

// compareWithRoute compares the engine's decision with proxy.Route, and reports whether both
// forward the flow.
func compareWithRoute(t *testing.T, e *Engine, s proxy.Snapshot, f Flow) bool {
	t.Helper()
	p := proxy.Packet{Protocol: f.Protocol, Source: f.Client, Destination: f.Frontend, ToNode: true}
	switch source := f.Client.Addr(); f.Origin {
	case ByAddress:
		p.FromNode = source.IsLoopback() || source == f.Frontend.Addr() || slices.Contains(s.Node().Addresses, source)
	case Pod:
		p.Interface = podInterface
	case Node:
		p.FromNode = true
	case Outside:
	}
	v := proxy.Route(s, p)
	d := e.decide(f)
	if d.route.Action != proxy.Forward && v.Action != proxy.Forward {
		return false // the kernel rules decide between reject, drop and pass
	}
	var got []proxy.Destination
	for _, x := range d.endpoints {
		if d.route.Action == proxy.Forward {
			got = append(got, proxy.Destination{Addr: x.Addr, Masquerade: !d.from(x).IsValid()})
		}
	}
	if fmt.Sprint(d.route.Action, got) != fmt.Sprint(v.Action, v.Endpoints) {
		t.Fatalf("%+v: got %v %v, want %v %v, since %q", f, d.route.Action, got, v.Action, v.Endpoints, v.Reasons)
	}
	return true
}

// A route to a pool without endpoints drops.
func TestEmptyPoolsAreNotServed(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolTCP)
	p := *w.port
	route := proxy.TrafficRoute{Action: proxy.Forward}
	p.Frontends = []proxy.Frontend{{Addr: memoryFrontend, FromInside: route, FromOutside: route}}
	w.Apply(proxy.NewSnapshot(&proxy.Node{}, &p))
	if d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend}); d.route.Action != proxy.Drop {
		t.Errorf("got %v, want %v", d.route.Action, proxy.Drop)
	}
}

// If the listener does not set the origin, the engine derives it from the address: a pod, the
// node, or outside, where the /64 of an IPv6 address counts as one client.
func TestOriginByAddress(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolTCP)
	pod, node, other := "fd00:10::1:2:3:4", "fd00:20::1:2:3:4", "2001:db8:0:1:2:3:4:5"
	wants := func(when string, want map[string]string) {
		t.Helper()
		for addr, key := range want {
			f := Flow{Protocol: v1.ProtocolTCP, Client: netip.AddrPortFrom(netip.MustParseAddr(addr), 1), Frontend: memoryFrontend}
			if got := w.holderOf(f).client; got != netip.MustParseAddr(key) {
				t.Errorf("%s: client of %s: got %v, want %s", when, addr, got, key)
			}
		}
	}
	wants("before the first snapshot", map[string]string{pod: "fd00:10::", node: "fd00:20::", other: "2001:db8:0:1::"})
	route := proxy.TrafficRoute{Action: proxy.Forward}
	p := *w.port
	p.Cluster = snapshots.At(memoryEndpoint)
	p.Frontends = []proxy.Frontend{{Addr: memoryFrontend, FromInside: route, FromOutside: route}}
	w.Apply(proxy.NewSnapshot(&proxy.Node{
		Addresses: []netip.Addr{netip.MustParseAddr(node)}, LocalTraffic: proxy.LocalTraffic{Sources: snapshots.Prefixes("fd00:10::/64")},
	}, &p))
	known := map[string]string{pod: pod, node: node, other: "2001:db8:0:1::"}
	wants("when the node is known", known)
	for addr, key := range known { // the source of failures, too
		d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: netip.AddrPortFrom(netip.MustParseAddr(addr), 1), Frontend: memoryFrontend})
		if got := d.view(p.Cluster[0]).source; got != netip.MustParseAddr(key) {
			t.Errorf("source of failures of %s: got %v, want %s", addr, got, key)
		}
	}
}

// Frontends are the addresses of Services, and node ports at the addresses of the node, also at those that
// its object does not list. As endpoints they are refused where connections of the engine may be captured.
func TestFrontendsAreNoEndpoints(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{
		Captured: true, IsLocal: func(a netip.Addr) bool { return a == alice },
		Hooks: Hooks{Dial: func(context.Context, Dial) (net.Conn, error) { return nil, net.ErrClosed }},
	}, v1.ProtocolTCP)
	for _, step := range []struct {
		next proxy.Snapshot
		want []string // of TCP
	}{
		{proxy.NewSnapshot(snapshots.Node("192.0.2.1"), snapshots.Port("web", "10.96.0.1:80 0.0.0.0:30000"), snapshots.Port("web/UDP", "10.96.0.2:80")), []string{"10.96.0.1:80", "192.0.2.1:30000", "10.0.0.1:30000"}},
		{proxy.NewSnapshot(snapshots.Node("192.0.2.2", "2001:db8::1"), snapshots.Port("web", "10.96.0.2:80 [::]:30000 0.0.0.0:30001")), []string{"10.96.0.2:80", "192.0.2.2:30001", "[2001:db8::1]:30000"}},
		{proxy.NewSnapshot(snapshots.Node("192.0.2.1", "192.0.2.2")), nil},
	} {
		w.Apply(step.next)
		var got []string
		for _, at := range []string{
			"10.96.0.1:80", "10.96.0.2:80", "192.0.2.1:30000", "192.0.2.1:30001", "192.0.2.2:30000", "192.0.2.2:30001", "[2001:db8::1]:30000", "[2001:db8::1]:30001", "10.0.0.1:30000",
		} {
			if _, err := w.reach(t.Context(), Dial{Protocol: v1.ProtocolTCP, To: netip.MustParseAddrPort(at)}, time.Second); errors.Is(err, errFrontend) {
				got = append(got, at)
			}
		}
		testenv.Same(t, step.want, got, "endpoints that are refused")
	}
}
