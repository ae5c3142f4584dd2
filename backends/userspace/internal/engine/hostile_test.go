package engine

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestInvalidConfigs(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Config{
		"Connections is -1":          {Connections: -1},
		"Sessions is -5":             {Sessions: -5},
		"Timeouts.Suspect is -1ns":   {Timeouts: Timeouts{Suspect: -1}},
		"Timeouts.Idle is -1s":       {Timeouts: Timeouts{Idle: -time.Second}},
		"Timeouts.HalfClosed is -1s": {Timeouts: Timeouts{HalfClosed: -time.Second}},
		"Timeouts.Drain is -1s":      {Timeouts: Timeouts{Drain: -time.Second}},
		"Timeouts.Session is -1s":    {Timeouts: Timeouts{Session: -time.Second}},
		"Timeouts.Wake is -1s":       {Timeouts: Timeouts{Wake: -time.Second}},
		"Timeouts.Dial[1] is 0s":     {Timeouts: Timeouts{Dial: []time.Duration{1, 0}}},
	} {
		e, err := New(c)
		if err == nil {
			e.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
}

// broken is a listener that always fails.
type broken struct {
	tries  atomic.Int64
	closed atomic.Bool
}

func (b *broken) Receive([]byte) (int, Flow, error) {
	if b.closed.Load() {
		return 0, Flow{}, net.ErrClosed
	}
	b.tries.Add(1)
	return 0, Flow{}, syscall.EIO
}

func (b *broken) Accept() (net.Conn, error) {
	_, _, err := b.Receive(nil)
	return nil, err
}

func (b *broken) Reply(Flow, []byte) error { return nil }
func (b *broken) Addr() net.Addr           { return net.TCPAddrFromAddrPort(memoryFrontend) }

func (b *broken) Close() error {
	b.closed.Store(true)
	return nil
}

// A listener that fails for good is retried with delays, and its errors are counted.
func TestBrokenListenersAreRetriedWithPauses(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(*fixture, *broken){
		"connections": func(w *fixture, b *broken) { w.Serve(Listener{Listener: b}) },
		"datagrams":   func(w *fixture, b *broken) { w.ServePackets(b) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, b := newFixture(t, Config{}, v1.ProtocolTCP), &broken{}
				serve(w, b)
				time.Sleep(time.Minute + 500*time.Millisecond)
				synctest.Wait()
				if n := b.tries.Load(); n < 50 || n > 80 {
					t.Errorf("attempts in a minute: got %d, want about one a second", n)
				}
				s := w.CountConnections()
				if s.Faults != uint64(b.tries.Load()) || !errors.Is(s.Fault, syscall.EIO) {
					t.Errorf("got %d faults, the last %v, want %d and %v", s.Faults, s.Fault, b.tries.Load(), syscall.EIO)
				}
			})
		})
	}
}

// EndAll and Close reset the connections to clients and endpoints at once.
func TestEndAll(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(w *fixture){"EndAll": func(w *fixture) { w.EndAll() }, "Close": func(w *fixture) { w.Close() }} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, Config{}, v1.ProtocolTCP)
			at := w.listen(t)
			observed := make(chan error, 1)
			w.serveAt(at, server(t, func(c net.Conn) {
				_, _ = c.Write([]byte("x"))
				_, err := c.Read(make([]byte, 1))
				observed <- err
			}))
			c := dialTo(t, at)
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			end(w)
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, connectionReset) {
				t.Errorf("the client got error %v, want %v", err, connectionReset)
			}
			if err := <-observed; !errors.Is(err, connectionReset) {
				t.Errorf("the endpoint got error %v, want %v", err, connectionReset)
			}
			eventually(t, "no connection is left", func() bool { return w.CountConnections().Connections == 0 })
		})
	}
}

// If all source ports for an endpoint are in use, another endpoint is chosen. A client with
// affinity to the first one loses the datagram, and keeps its affinity.
func TestNoPortIsLeft(t *testing.T) {
	t.Parallel()
	full, good := netip.MustParseAddrPort("127.0.0.1:9"), echo(t)
	dial := func(ctx context.Context, d Dial) (net.Conn, error) {
		if d.To == full {
			return nil, ErrNoPort
		}
		return DialBy(ctx, &net.Dialer{}, d)
	}
	w := newFixture(t, Config{Hooks: Hooks{Dial: dial, Pick: pickIfThere(full)}}, v1.ProtocolUDP)
	at := w.packets(t)
	w.serveAt(at, full, good)
	if got := newUDPClient(t, at).serverName(t); got != good.String() {
		t.Errorf("got %s, want %v", got, good)
	}
	w.serveAt(at, full)
	if _, err := newUDPClient(t, at).Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a datagram is too many", func() bool { return w.CountConnections().Crowded > 0 })
	w.withAffinity(time.Hour).serveAt(at, full, good)
	d := w.decide(Flow{Protocol: v1.ProtocolUDP, Client: memoryClient, Frontend: at})
	d.service.table(d.route.Pool).Put(memoryClient.Addr(), full)
	if _, _, err := w.connect(t.Context(), &d); !errors.Is(err, ErrNoPort) {
		t.Errorf("got error %v, want %v", err, ErrNoPort)
	}
	if got, _ := d.service.table(d.route.Pool).Get(memoryClient.Addr()); got != full {
		t.Errorf("affinity of the client: got %v, want %v", got, full)
	}
}

// When affinity is turned off, the clients of the service port no longer count.
func TestDisabledAffinityFreesItsClients(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolTCP).withAffinity(time.Hour)
	w.affinity = affinity.NewBudget(2)
	w.serveAt(memoryFrontend, memoryEndpoint)
	d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
	for _, a := range []netip.Addr{alice, bob, carol} {
		d.service.table(d.route.Pool).Put(a, memoryEndpoint)
	}
	testenv.Same(t, 2, w.affinity.Len(), "remembered clients")
	w.withAffinity(0).serveAt(memoryFrontend, memoryEndpoint)
	if got := w.affinity.Len(); got != 0 {
		t.Errorf("remembered clients without affinity: got %d, want none", got)
	}
}

// A client that reaches an endpoint while its Service is removed is not remembered.
func TestRemovedServicesRememberNoClients(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolTCP).withAffinity(time.Hour)
	w.serveAt(memoryFrontend, memoryEndpoint)
	d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
	table := d.service.table(d.route.Pool)
	w.Apply(proxy.NewSnapshot(&proxy.Node{}))
	table.Put(alice, memoryEndpoint)
	w.affinity.Expire()
	if got := w.affinity.Len(); got != 0 {
		t.Errorf("remembered clients: got %d, want none", got)
	}
}
