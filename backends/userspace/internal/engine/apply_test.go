package engine

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// If the node's range of pods changes, the route of a client may change. Its session then
// ends, however often it sends.
func TestSessionsFollowTheNode(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolUDP)
	at, server := w.packetsFrom(t, Outside), echo(t)
	p := forwarding("web", at, server)
	p.Frontends[0].FromOutside.Action = proxy.Drop
	inside := &proxy.Node{LocalTraffic: proxy.LocalTraffic{Sources: snapshots.Prefixes("127.0.0.0/8")}}
	w.Apply(proxy.NewSnapshot(inside, p))
	a := udpClientFrom(t, "127.0.0.1", at)
	if got := a.serverName(t); got != server.String() {
		t.Fatalf("got %s, want %v", got, server)
	}
	same := *inside
	w.Apply(proxy.NewSnapshot(&same, p))
	if got := w.CountConnections().Sessions; got != 1 {
		t.Errorf("without a change: got %d sessions, want 1", got)
	}
	w.Apply(proxy.NewSnapshot(&proxy.Node{LocalTraffic: proxy.LocalTraffic{Interface: "pods"}}, p))
	eventually(t, "the session of the client, which is no pod any more, has ended", func() bool { return w.CountConnections().Sessions == 0 })
}

// Endpoints of all pools, and draining endpoints, keep their connections; after they are
// removed, their connections get the grace period.
func TestEndpointsOfAllPools(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolTCP)
	p := *w.port
	for i, pool := range []func(*proxy.ServicePort, netip.AddrPort){
		func(p *proxy.ServicePort, a netip.AddrPort) { p.Cluster = snapshots.At(a) },
		func(p *proxy.ServicePort, a netip.AddrPort) { p.Local = snapshots.At(a) },
		func(p *proxy.ServicePort, a netip.AddrPort) { p.Draining = snapshots.At(a) },
	} {
		with, gone := p, p
		pool(&with, memoryEndpoint)
		w.Apply(proxy.NewSnapshot(&proxy.Node{}, &with))
		l := &connection{endpoint: memoryEndpoint}
		w.register(l, &decision{service: w.services[p.Name], port: &with})
		w.Apply(proxy.NewSnapshot(&proxy.Node{}, &gone))
		if l.end.Load() == 0 {
			t.Errorf("pool %d: the endpoint was removed, and its connections have no grace period", i)
		}
		w.Apply(proxy.NewSnapshot(&proxy.Node{}, &with))
		if l.end.Load() != 0 {
			t.Errorf("pool %d: the endpoint has returned, and its connections still have a grace period", i)
		}
		w.Apply(proxy.NewSnapshot(&proxy.Node{}))
		if l.end.Load() == 0 {
			t.Errorf("pool %d: the Service was removed, and its connections have no grace period", i)
		}
	}
}

// Apply may be called from several goroutines at once while clients keep sending, without a
// deadlock.
func TestConcurrentApplies(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{Hooks: Hooks{
		Dial: func(context.Context, Dial) (net.Conn, error) { return newFakeSocket(), nil },
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
			t.Fatal("not in time: the goroutines have ended; they may wait for each other")
		}
	}
}
