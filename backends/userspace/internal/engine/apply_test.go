package engine

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
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
	eventually(t, "the session of the client, which is no pod any more, has ended", func() bool {
		_, _ = a.Write([]byte("?"))
		return w.CountConnections().Sessions == 0
	})
}

// Endpoints of all pools, and draining endpoints, keep their connections. After they are removed, alone or with their
// Service, their connections have the grace period, until they return.
func TestEndpointsOfAllPools(t *testing.T) {
	t.Parallel()
	for i, pool := range []func(*proxy.ServicePort, netip.AddrPort){
		func(p *proxy.ServicePort, a netip.AddrPort) { p.Cluster = snapshots.At(a) },
		func(p *proxy.ServicePort, a netip.AddrPort) { p.Local = snapshots.At(a) },
		func(p *proxy.ServicePort, a netip.AddrPort) { p.Draining = snapshots.At(a) },
	} {
		gone := snapshots.Port("web", "")
		with := *gone
		pool(&with, memoryEndpoint)
		again := with
		c := &connection{endpoint: memoryEndpoint, port: &with}
		c.relaying.Store(true)
		timeouts := Timeouts{Idle: time.Hour, HalfClosed: time.Hour, Drain: time.Minute}
		for step, ports := range [][]*proxy.ServicePort{{&with}, {gone}, {&again}, nil, {&with}} {
			for _, now := range []time.Duration{time.Second, time.Minute} { // the period begins once
				c.overdue(now, &timeouts, proxy.NewSnapshot(&proxy.Node{}, ports...))
			}
			want := time.Duration(0)
			if step%2 == 1 {
				want = time.Second + time.Minute
			}
			testenv.Same(t, want, c.end, "pool %d, step %d: end of the grace period", i, step)
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
	start := time.Now()
	for _, f := range []func(){both, both, ask, ask} {
		go func() {
			for applied.Load() < 20_000 && time.Since(start) < 5*time.Second {
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

// Flows that reach no endpoint are counted by cause, in the same way for connections and
// sessions.
func TestLostFlowsAreCounted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want proxy.ConnectionCounts
	}{
		"no port":        {ErrNoPort, proxy.ConnectionCounts{Crowded: 1}},
		"no descriptor":  {os.NewSyscallError("socket", syscall.EMFILE), proxy.ConnectionCounts{Crowded: 1}},
		"anything else":  {errors.New("broken"), proxy.ConnectionCounts{Failed: 1}},
		"no such device": {syscall.ENODEV, proxy.ConnectionCounts{Failed: 1}},
	} {
		for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
			t.Run(name+"/"+string(protocol), func(t *testing.T) {
				w := newFixture(t, Config{Hooks: Hooks{
					Dial: func(context.Context, Dial) (net.Conn, error) { return nil, test.err },
				}}, protocol)
				w.serveAt(memoryFrontend, memoryEndpoint)
				f := Flow{Protocol: protocol, Client: memoryClient, Frontend: memoryFrontend}
				if protocol == v1.ProtocolUDP {
					w.Datagram(f, []byte("?"), nil)
				} else {
					client, _ := net.Pipe()
					w.serve(client, f)
				}
				if got := w.CountConnections(); got != test.want {
					t.Errorf("got %+v, want %+v", got, test.want)
				}
				if got := len(w.sessions.sockets); got != 0 {
					t.Errorf("counted sockets: got %d, want none", got)
				}
			})
		}
	}
}

// Bytes are those of datagrams that were sent on: not those that are denied, or that nobody takes.
func TestBytesOfDatagramsAreCounted(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolUDP)
	at := w.packets(t)
	server := udpSocket(t)
	w.Apply(proxy.NewSnapshot(&proxy.Node{}, forwarding("dns", at, addrOf(server.LocalAddr()))))
	client, err := net.Dial("udp4", at.String())
	testenv.NoError(t, err)
	defer shut(client)
	buf := make([]byte, 100)
	for range 3 {
		if _, err := client.Write([]byte("12345")); err != nil {
			t.Fatal(err)
		}
		n, from, err := server.ReadFromUDPAddrPort(buf)
		if err != nil || n != 5 {
			t.Fatalf("got %d bytes and error %v, want 5 bytes", n, err)
		}
		if _, err := server.WriteToUDPAddrPort([]byte("1234567890"), from); err != nil {
			t.Fatal(err)
		}
		if n, err := client.Read(buf); err != nil || n != 10 {
			t.Fatalf("got %d bytes and error %v, want 10 bytes", n, err)
		}
	}
	eventually(t, "15 bytes there and 30 back are counted", func() bool { got := w.CountConnections(); return got.BytesIn == 15 && got.BytesOut == 30 })
	w.Apply(proxy.NewSnapshot(&proxy.Node{}))
	if _, err := client.Write([]byte("denied")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the datagram is denied", func() bool { return w.CountConnections().Denied == 1 })
	if got := w.CountConnections(); got.BytesIn != 15 || got.BytesOut != 30 {
		t.Errorf("after a denied datagram: got %+v, want no more bytes", got)
	}
}
