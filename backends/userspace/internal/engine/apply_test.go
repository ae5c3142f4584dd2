package engine

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

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
		w.register(l, &decision{service: w.services[p.Name], port: &with})
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

// Snapshots may come from several goroutines at once, while clients never stop
// sending, and none of all these waits for another one for ever.
func TestAppliesAtOnce(t *testing.T) {
	w := newWorld(t, Config{Hooks: Hooks{
		Dial: func(context.Context, Dial) (net.Conn, error) { return newScripted(), nil },
	}}, v1.ProtocolUDP)
	other := netip.MustParseAddrPort("10.96.0.9:80")
	var applied atomic.Int64
	both := func() {
		w.Apply(proxy.NewSnapshot(&proxy.Node{}, forwarding("web", memoryFrontend, memoryEndpoint)))
		w.Apply(proxy.NewSnapshot(&proxy.Node{}, forwarding("web", other, memoryClient)))
		applied.Add(1)
	}
	ask := func() { w.Datagram(memoryFlow(), []byte("?"), failingReplier{}) }
	done := make(chan struct{}, 4)
	for _, f := range []func(){both, both, ask, ask} {
		go func() {
			for applied.Load() < 20_000 {
				f()
			}
			done <- struct{}{}
		}()
	}
	for range cap(done) {
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Fatal("some of them wait for each other")
		}
	}
}
