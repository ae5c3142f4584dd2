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

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// watched is a connection that records how it was closed.
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

// wantReset checks that the connection was closed by a reset.
func (w *watched) wantReset(t *testing.T) {
	t.Helper()
	if !w.closed.Load() || w.lingers.Load() {
		t.Errorf("got closed %v, reset %v, want both", w.closed.Load(), !w.lingers.Load())
	}
}

// A connection that is accepted when the engine is closed is reset, and holds no slot.
func TestConnectionsAfterClose(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{Connections: 1}, v1.ProtocolTCP)
	w.Close()
	for range 3 {
		c := newWatched()
		w.admit(c, Listener{Destination: func(net.Conn) (netip.AddrPort, error) { return memoryFrontend, nil }})
		c.wantReset(t)
	}
	if len(w.tasks.quota.counts) != 0 || len(w.tasks.slots) != 0 {
		t.Errorf("got counted connections %v and %d slots in use, want none", w.tasks.quota.counts, len(w.tasks.slots))
	}
	testenv.Same(t, 3, w.CountConnections().Accepted, "accepted connections")
}

// A connection is also reset if it had a slot, and its goroutine begins after Close.
func TestConnectionsDuringClose(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolTCP)
	w.serveAt(memoryFrontend, memoryEndpoint)
	w.Close()
	c := newWatched()
	w.serve(c, Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
	c.wantReset(t)
}

// Listener.Destination returns the frontend of a connection; if it fails, the connection is
// denied.
func TestListenersReturnDestinations(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolTCP)
	want := named(t)
	w.serveAt(memoryFrontend, want)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	testenv.NoError(t, err)
	var failing atomic.Bool
	w.Serve(Listener{Listener: l, Destination: func(net.Conn) (netip.AddrPort, error) {
		if failing.Load() {
			return memoryFrontend, errors.New("not known")
		}
		return netip.AddrPortFrom(netip.AddrFrom16(memoryFrontend.Addr().As16()), memoryFrontend.Port()), nil
	}})
	at := addrOf(l.Addr())
	if got, _ := serverNameAt(t, at); got != want.String() {
		t.Errorf("got %s, want %v", got, want)
	}
	failing.Store(true)
	wantReset(t, at)
	testenv.Same(t, 1, w.CountConnections().Denied, "denied connections")
}

// If a connection ends while its endpoint is being dialed, both sides are closed, and no
// failure is counted.
func TestConnectionsMayEndWhileDialing(t *testing.T) {
	t.Parallel()
	upstream := newWatched()
	var w *fixture
	w = newFixture(t, Config{Hooks: Hooks{Dial: func(context.Context, Dial) (net.Conn, error) {
		w.EndAll()
		return upstream, nil
	}}}, v1.ProtocolTCP)
	w.serveAt(memoryFrontend, memoryEndpoint)
	client := newWatched()
	w.serve(client, Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
	client.wantReset(t)
	if !upstream.closed.Load() {
		t.Error("the connection to the endpoint is still open")
	}
	if s := w.CountConnections(); s.Failed != 0 || s.Connections != 0 {
		t.Errorf("got %+v, want no failure and no connection", s)
	}
}

// The idle time of a connection counts from its beginning, not from that of the engine.
func TestNewConnectionsAreNotIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner, endpoint := connected()
		w := newFixture(t, Config{Hooks: Hooks{
			Dial: func(context.Context, Dial) (net.Conn, error) { return inner, nil },
		}}, v1.ProtocolTCP)
		w.serveAt(memoryFrontend, memoryEndpoint)
		l := &memoryListener{make(chan net.Conn), make(chan struct{})}
		w.Serve(Listener{Listener: l})
		time.Sleep(5 * time.Hour)
		client, outer := connected()
		l.conns <- outer
		time.Sleep(time.Hour) // of two
		if !lives(client, endpoint) {
			t.Error("the connection has ended before the idle timeout")
		}
		shut(client)
		shut(endpoint)
	})
}

// flaky is a listener that fails failures[i] times before its i-th connection.
type flaky struct {
	memoryListener

	failures []int
}

func (l *flaky) Accept() (net.Conn, error) {
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

// After a success, the delays of a listener start again from the shortest.
func TestDelaysOfListenersRestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, Config{}, v1.ProtocolTCP)
		// The delays are 5, 10, 20 … ms.
		l := &flaky{memoryListener{make(chan net.Conn), make(chan struct{})}, []int{6, 1, 1, 1}}
		w.Serve(Listener{Listener: l})
		time.Sleep(315*time.Millisecond + 3*5*time.Millisecond + time.Millisecond)
		synctest.Wait()
		if got := w.CountConnections().Faults; got != 9 || len(l.failures) != 0 {
			t.Errorf("failures after 331 ms: got %d, want 9", got)
		}
	})
}

// The engine closes its listeners, also one that it gets after Close.
func TestListenersAreClosedInTheEnd(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(*fixture, *broken){
		"connections": func(w *fixture, b *broken) { w.Serve(Listener{Listener: b}) },
		"datagrams":   func(w *fixture, b *broken) { w.ServePackets(b) },
	} {
		w, before, after := newFixture(t, Config{}, v1.ProtocolTCP), &broken{}, &broken{}
		serve(w, before)
		w.Close()
		serve(w, after)
		if !before.closed.Load() || !after.closed.Load() {
			t.Errorf("%s: closed listeners: got %t and %t after Close, want both", name, before.closed.Load(), after.closed.Load())
		}
		testenv.NoError(t, w.AwaitIdle(t.Context()))
	}
}

// If an endpoint is removed while it is being dialed, its connection has the grace period.
func TestEndpointsMayBeRemovedWhileDialing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner, endpoint := connected()
		var w *fixture
		w = newFixture(t, Config{Hooks: Hooks{Dial: func(context.Context, Dial) (net.Conn, error) {
			w.serveAt(memoryFrontend, netip.MustParseAddrPort("10.1.0.2:80"))
			return inner, nil
		}}}, v1.ProtocolTCP)
		w.serveAt(memoryFrontend, memoryEndpoint)
		l := &memoryListener{make(chan net.Conn), make(chan struct{})}
		w.Serve(Listener{Listener: l})
		client, outer := connected()
		l.conns <- outer
		time.Sleep(9 * time.Minute)
		if !lives(client, endpoint) {
			t.Fatal("the connection has ended before the grace period")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := w.CountConnections().Connections; got != 0 {
			t.Errorf("connections after the grace period: got %d, want none", got)
		}
		if _, err := client.Read(make([]byte, 1)); err == nil || errors.Is(err, io.ErrNoProgress) {
			t.Errorf("reading as the client: got error %v, want a closed connection", err)
		}
		shut(client)
		shut(endpoint)
	})
}

// The engine expires failures of endpoints and the affinity of clients.
func TestFailuresAndAffinityExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, Config{}, v1.ProtocolTCP).withAffinity(time.Minute)
		w.serveAt(memoryFrontend, memoryEndpoint)
		d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
		d.service.table(d.route.Pool).Put(alice, memoryEndpoint)
		w.failures.recordFailure(webAt(), alice)
		time.Sleep(30 * time.Second)
		if w.affinity.Len() != 1 || w.failures.count.Load() != 2 {
			t.Errorf("after 30 s: got %d clients and %d failures, want 1 client and a failure in both maps", w.affinity.Len(), w.failures.count.Load())
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if w.affinity.Len() != 0 || w.failures.count.Load() != 0 {
			t.Errorf("after 150 s: got %d clients and %d failures, want none", w.affinity.Len(), w.failures.count.Load())
		}
	})
}
