package engine

import (
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// What the node knows of pods may change, and with it what becomes of a client: his
// session ends, however often he asks.
func TestSessionsFollowTheNode(t *testing.T) {
	w := newWorld(t, Config{}, v1.ProtocolUDP)
	at, server := w.packetsFrom(t, Outside), echo(t)
	p := forwarding("web", at, server)
	p.Frontends[0].FromOutside.Action = proxy.Drop
	inside := &proxy.Node{LocalTraffic: proxy.LocalTraffic{Sources: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}}
	w.Apply(proxy.NewSnapshot(inside, p))
	a := askerFrom(t, "127.0.0.1", at)
	if got := a.who(t); got != server.String() {
		t.Fatalf("got %s, want %v", got, server)
	}
	same := *inside
	w.Apply(proxy.NewSnapshot(&same, p))
	if got := w.Stats().Sessions; got != 1 {
		t.Errorf("when nothing has changed, there are %d sessions, want one", got)
	}
	w.Apply(proxy.NewSnapshot(&proxy.Node{LocalTraffic: proxy.LocalTraffic{Interface: "pods"}}, p))
	eventually(t, "the client is no pod any more, and its session has ended", func() bool { return w.Stats().Sessions == 0 })
}

// An endpoint may be one for local traffic only, or one that drains. It counts as
// there, and is missed when it goes.
func TestEndpointsOfAllPools(t *testing.T) {
	w := newWorld(t, Config{}, v1.ProtocolTCP)
	p := *w.port
	for i, pool := range []func(*proxy.ServicePort, netip.AddrPort){
		func(p *proxy.ServicePort, a netip.AddrPort) { p.Cluster = sortedPool(a) },
		func(p *proxy.ServicePort, a netip.AddrPort) { p.Local = sortedPool(a) },
		func(p *proxy.ServicePort, a netip.AddrPort) { p.Draining = sortedPool(a) },
	} {
		with, gone := p, p
		pool(&with, memoryEndpoint)
		w.Apply(proxy.NewSnapshot(&proxy.Node{}, &with))
		l := &link{endpoint: memoryEndpoint}
		s := w.services[p.Name]
		s.register(l, func() bool { return true })
		w.Apply(proxy.NewSnapshot(&proxy.Node{}, &gone))
		if l.end.Load() == 0 {
			t.Errorf("pool %d: the endpoint is gone, and its connections may live for ever", i)
		}
		w.Apply(proxy.NewSnapshot(&proxy.Node{}, &with))
		if l.end.Load() != 0 {
			t.Errorf("pool %d: the endpoint has come back, and its connections are to end", i)
		}
		w.Apply(proxy.NewSnapshot(&proxy.Node{}))
		if l.end.Load() == 0 {
			t.Errorf("pool %d: the Service is gone, and its connections may live for ever", i)
		}
	}
}
