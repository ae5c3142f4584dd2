package engine

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// watched is a connection that tells how it was closed.
type watched struct {
	net.Conn

	lingers, closed atomic.Bool
}

func newWatched() *watched {
	near, _ := net.Pipe()
	w := &watched{Conn: near}
	w.lingers.Store(true)
	return w
}

func (w *watched) SetLinger(sec int) error {
	w.lingers.Store(sec != 0)
	return nil
}

func (w *watched) Close() error {
	w.closed.Store(true)
	return w.Conn.Close()
}

// wantReset wants the other end to have been told that not everything was said.
func (w *watched) wantReset(t *testing.T) {
	t.Helper()
	if !w.closed.Load() || w.lingers.Load() {
		t.Errorf("closed: %v, reset: %v; want both", w.closed.Load(), !w.lingers.Load())
	}
}

// A connection that comes when the engine ends is reset, and holds no place.
func TestConnectionsThatComeTooLate(t *testing.T) {
	w := newWorld(t, Config{Connections: 1}, v1.ProtocolTCP)
	w.Close()
	for range 3 {
		c := newWatched()
		w.admit(c, Door{Destination: func(net.Conn) (netip.AddrPort, error) { return memoryFrontend, nil }})
		c.wantReset(t)
	}
	if w.tasks.quota.total != 0 || len(w.tasks.slots) != 0 {
		t.Errorf("%d connections hold %d places, want none", w.tasks.quota.total, len(w.tasks.slots))
	}
	if got := w.Stats().Accepted; got != 3 {
		t.Errorf("%d connections were accepted, want 3", got)
	}
}

// So is one that had a place when the engine ended, and a goroutine that had not begun.
func TestConnectionsThatAreJustInTime(t *testing.T) {
	w := newWorld(t, Config{}, v1.ProtocolTCP)
	w.serveAt(memoryFrontend, memoryEndpoint)
	w.Close()
	c := newWatched()
	w.serve(c, Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
	c.wantReset(t)
}

// A door may tell which frontend a connection asked for; one that cannot say so is
// denied.
func TestDoorsTellDestinations(t *testing.T) {
	w := newWorld(t, Config{}, v1.ProtocolTCP)
	want := named(t)
	w.serveAt(memoryFrontend, want)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var failing atomic.Bool
	w.open(t, Door{Listener: l, Destination: func(net.Conn) (netip.AddrPort, error) {
		if failing.Load() {
			return memoryFrontend, errors.New("nobody knows")
		}
		return netip.AddrPortFrom(netip.AddrFrom16(memoryFrontend.Addr().As16()), memoryFrontend.Port()), nil
	}})
	at := addrOf(l.Addr())
	if got, _ := whoAt(t, at); got != want.String() {
		t.Errorf("got %s, want %v", got, want)
	}
	failing.Store(true)
	wantReset(t, at)
	if got := w.Stats().Denied; got != 1 {
		t.Errorf("%d connections were denied, want one", got)
	}
}

// A connection that ends while its endpoint is being reached leaves nothing open,
// and is no failure of the endpoint.
func TestConnectionsMayEndWhileDialled(t *testing.T) {
	upstream := newWatched()
	var w *world
	w = newWorld(t, Config{Hooks: Hooks{Dial: func(context.Context, Dial) (net.Conn, error) {
		w.EndAll()
		return upstream, nil
	}}}, v1.ProtocolTCP)
	w.serveAt(memoryFrontend, memoryEndpoint)
	client := newWatched()
	w.serve(client, Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
	client.wantReset(t)
	if !upstream.closed.Load() {
		t.Error("the connection to the endpoint stays open")
	}
	if s := w.Stats(); s.Failed != 0 || s.Connections != 0 {
		t.Errorf("got %+v, want no failure and no connection", s)
	}
}

// Nothing is remembered of a connection that is over.
func TestConnectionsLeaveNothing(t *testing.T) {
	w := newWorld(t, Config{}, v1.ProtocolTCP)
	at := w.listen(t)
	w.serveAt(at, named(t))
	for range 5 {
		_, c := whoAt(t, at)
		shut(c)
	}
	d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: at})
	eventually(t, "nothing is left", func() bool {
		d.service.mu.Lock()
		defer d.service.mu.Unlock()
		return len(w.links()) == 0 && len(d.service.links) == 0
	})
}

// How long the engine has been there is not how long a new connection is silent.
func TestLateConnectionsLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, endpoint := connected()
		w := newWorld(t, Config{Hooks: Hooks{
			Dial: func(context.Context, Dial) (net.Conn, error) { return inner, nil },
		}}, v1.ProtocolTCP)
		w.serveAt(memoryFrontend, memoryEndpoint)
		l := &memoryListener{make(chan net.Conn), make(chan struct{})}
		w.open(t, Door{Listener: l})
		time.Sleep(5 * time.Hour)
		client, outer := connected()
		l.conns <- outer
		time.Sleep(time.Hour) // of two
		if !lives(client, endpoint) {
			t.Error("a connection has ended before its time")
		}
		shut(client)
		shut(endpoint)
	})
}

// limping is a listener that fails some times before each connection.
type limping struct {
	memoryListener

	failures []int
}

func (l *limping) Accept() (net.Conn, error) {
	if len(l.failures) == 0 {
		return l.memoryListener.Accept()
	}
	l.failures[0]--
	if l.failures[0] < 0 {
		l.failures = l.failures[1:]
		c, _ := net.Pipe()
		return c, nil
	}
	return nil, syscall.EMFILE
}

// Receive fails as Accept does.
func (l *limping) Receive([]byte) (int, Flow, error) {
	c, err := l.Accept()
	if err == nil {
		shut(c)
	}
	return 0, Flow{}, err
}

func (l *limping) Reply(Flow, []byte) error { return nil }

// A door that has served in between is not one that fails again and again.
func TestPatienceWithDoorsBeginsAnew(t *testing.T) {
	for name, serve := range map[string]func(*world, *limping) error{
		"connections": func(w *world, l *limping) error { return w.Serve(Door{Listener: l}) },
		"datagrams":   func(w *world, l *limping) error { return w.ServePackets(l) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Config{}, v1.ProtocolTCP)
				// It takes 5, 10, 20 … ms to ask again.
				l := &limping{memoryListener{make(chan net.Conn), make(chan struct{})}, []int{6, 1, 1, 1}}
				done := make(chan error, 1)
				go func() { done <- serve(w, l) }()
				time.Sleep(315*time.Millisecond + 3*5*time.Millisecond + time.Millisecond)
				synctest.Wait()
				if got := w.Stats().Faults; got != 9 || len(l.failures) != 0 {
					t.Errorf("after 331 ms it has failed %d times of 9", got)
				}
				w.Close()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Who ends serving closes the door, however it comes to that.
func TestDoorsAreClosedInTheEnd(t *testing.T) {
	for name, serve := range map[string]func(*world, *broken) error{
		"connections": func(w *world, b *broken) error { return w.Serve(Door{Listener: b}) },
		"datagrams":   func(w *world, b *broken) error { return w.ServePackets(b) },
	} {
		w, b := newWorld(t, Config{}, v1.ProtocolTCP), &broken{}
		w.tasks.cancel()
		if err := serve(w, b); err != nil || !b.closed.Load() {
			t.Errorf("%s: got error %v, and the door closed: %v; want no error and a closed door", name, err, b.closed.Load())
		}
		w.Close()
		b = &broken{}
		if err := serve(w, b); !errors.Is(err, net.ErrClosed) || !b.closed.Load() {
			t.Errorf("%s, after the end: got error %v, and the door closed: %v; want %v and a closed door", name, err, b.closed.Load(), net.ErrClosed)
		}
	}
}

// Which endpoints a service port has, with those that only keep what they have.
func TestWhatIsServed(t *testing.T) {
	w := newWorld(t, Config{}, v1.ProtocolTCP)
	addr := netip.MustParseAddrPort
	w.serveAt(memoryFrontend, addr("10.1.0.1:80"))
	d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
	if !w.serves(&d, addr("10.1.0.9:80")) {
		t.Error("nothing has changed, and an endpoint is gone")
	}
	p := *w.port
	p.Cluster, p.Local, p.Draining = sortedPool(addr("10.1.0.2:80")), sortedPool(addr("10.1.0.3:80")), sortedPool(addr("10.1.0.4:80"))
	w.Apply(proxy.NewSnapshot(&proxy.Node{}, &p))
	for a, want := range map[string]bool{"10.1.0.1:80": false, "10.1.0.2:80": true, "10.1.0.3:80": true, "10.1.0.4:80": true} {
		if got := w.serves(&d, addr(a)); got != want {
			t.Errorf("%s: got %v, want %v", a, got, want)
		}
	}
	w.Apply(proxy.NewSnapshot(&proxy.Node{}))
	if w.serves(&d, addr("10.1.0.2:80")) {
		t.Error("the Service is gone, and its endpoint is not")
	}
}

// A connection whose endpoint goes while it is being reached has the grace period,
// and not for ever.
func TestEndpointsMayGoWhileDialled(t *testing.T) {
	endsWithTheGracePeriod(t, func(w *world) { w.serveAt(memoryFrontend, netip.MustParseAddrPort("10.1.0.2:80")) })
}

// So has one whose Service goes then and comes back: what it had before is not its own.
func TestServicesMayBeMadeAnewWhileDialled(t *testing.T) {
	endsWithTheGracePeriod(t, func(w *world) {
		w.Apply(proxy.NewSnapshot(&proxy.Node{}))
		w.serveAt(memoryFrontend, memoryEndpoint)
	})
}

// endsWithTheGracePeriod wants a connection to end so, where something happens while it is
// dialled.
func endsWithTheGracePeriod(t *testing.T, happens func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		inner, endpoint := connected()
		var w *world
		w = newWorld(t, Config{Hooks: Hooks{Dial: func(context.Context, Dial) (net.Conn, error) {
			happens(w)
			return inner, nil
		}}}, v1.ProtocolTCP)
		w.serveAt(memoryFrontend, memoryEndpoint)
		l := &memoryListener{make(chan net.Conn), make(chan struct{})}
		w.open(t, Door{Listener: l})
		client, outer := connected()
		l.conns <- outer
		time.Sleep(9 * time.Minute)
		if !lives(client, endpoint) {
			t.Fatal("the connection has ended before the grace period")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := w.Stats().Connections; got != 0 {
			t.Errorf("after the grace period there are %d connections, want none", got)
		}
		if _, err := client.Read(make([]byte, 1)); err == nil || errors.Is(err, io.ErrNoProgress) {
			t.Errorf("got error %v, want the connection to be over", err)
		}
		shut(client)
		shut(endpoint)
	})
}

// What is remembered of endpoints and clients goes with time, though nobody asks.
func TestMemoryFades(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{}, v1.ProtocolTCP).sticky(time.Minute)
		w.serveAt(memoryFrontend, memoryEndpoint)
		d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
		d.service.table(d.pool).Put(alice, memoryEndpoint)
		w.suspects.accuse(webAt(), alice)
		time.Sleep(30 * time.Second)
		if w.affinity.Len() != 1 || w.suspects.count.Load() != 2 {
			t.Errorf("after 30 s, %d clients and %d suspects are remembered, want one client and both kinds of suspects", w.affinity.Len(), w.suspects.count.Load())
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if w.affinity.Len() != 0 || w.suspects.count.Load() != 0 {
			t.Errorf("later, %d clients and %d suspects are remembered, want none", w.affinity.Len(), w.suspects.count.Load())
		}
	})
}

// Who stuck to an endpoint that went does not stick to it when it is back.
func TestLostEndpointsHaveNoClients(t *testing.T) {
	w := newWorld(t, Config{}, v1.ProtocolTCP).sticky(time.Hour)
	other := netip.MustParseAddrPort("10.1.0.2:80")
	w.serveAt(memoryFrontend, memoryEndpoint, other)
	d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
	table := d.service.table(d.pool)
	table.Put(alice, memoryEndpoint)
	table.Put(bob, other)
	w.serveAt(memoryFrontend, other)
	w.serveAt(memoryFrontend, memoryEndpoint, other)
	if got, ok := table.Get(alice); ok {
		t.Errorf("alice sticks to %v, which was gone", got)
	}
	if got, ok := table.Get(bob); !ok || got != other {
		t.Errorf("bob sticks to %v (%v), want %v, which was there all the time", got, ok, other)
	}
}
