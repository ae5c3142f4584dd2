package engine

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Data of any size arrives unchanged, and half-closing one direction does not close the other.
func TestDataAndHalfClose(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolTCP)
	at := w.listen(t)
	w.serveAt(at, server(t, func(c net.Conn) {
		all, err := io.ReadAll(c) // answers only when the client has sent everything
		if err == nil {
			_, _ = c.Write(all)
		}
	}))
	random, sent := testenv.Random(t), uint64(0)
	for _, size := range []int{0, 1, 1000, 16 << 10, 16<<10 + 1, 3 << 20, 4<<20 + 12345} {
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		c := dialTo(t, at)
		go func() {
			for rest := data; len(rest) > 0; {
				n := min(len(rest), 1+rand.IntN(200_000))
				if _, err := c.Write(rest[:n]); err != nil {
					return
				}
				rest = rest[n:]
			}
			_ = c.CloseWrite()
		}()
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes sent: got %d bytes and error %v, want the same back", size, len(got), err)
		}
		shut(c)
		sent += uint64(size)
	}
	eventually(t, "no connection is left", func() bool { return len(w.connections()) == 0 })
	if got := w.CountConnections(); got.BytesIn != sent || got.BytesOut != sent {
		t.Errorf("bytes to the endpoint and back: got %d and %d, want %d", got.BytesIn, got.BytesOut, sent)
	}
}

func TestDeadEndpointsArePassedOver(t *testing.T) {
	t.Parallel()
	for name, dead := range map[string]func(t *testing.T, d unresponsive) netip.AddrPort{
		"refuses": func(t *testing.T, _ unresponsive) netip.AddrPort { return refusing(t) },
		"is silent": func(t *testing.T, d unresponsive) netip.AddrPort {
			a := refusing(t)
			d[a] = true
			return a
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := unresponsive{}
			gone, good := dead(t, d), named(t)
			var tried atomic.Int64
			dial := func(ctx context.Context, to Dial) (net.Conn, error) {
				if to.To == gone {
					tried.Add(1)
				} else {
					ctx = context.WithoutCancel(ctx) // a busy machine may take longer
				}
				return d.dial(ctx, to)
			}
			first := Hooks{Dial: dial, Pick: pickIfThere(gone)}
			w := newFixture(t, Config{Hooks: first, Timeouts: Timeouts{Dial: []time.Duration{50 * time.Millisecond, 5 * time.Second}, Suspect: time.Hour}}, v1.ProtocolTCP)
			at := w.listen(t)
			w.serveAt(at, gone, good)
			for i := range 5 {
				if got, _ := serverNameAt(t, at); got != good.String() {
					t.Fatalf("connection %d: got %s, want %v", i, got, good)
				}
			}
			if n := tried.Load(); n != 1 {
				t.Errorf("attempts at %v of 5 connections: got %d, want 1", gone, n)
			}
			if !w.failures.has(failureKey{addr: gone, protocol: v1.ProtocolTCP}, netip.Addr{}) {
				t.Errorf("failure of %v: got none recorded, want one", gone)
			}
		})
	}
}

// pickIfThere returns a hook that picks an endpoint if it is among the candidates, otherwise
// the first one.
func pickIfThere(a netip.AddrPort) func(Flow, []*endpoints.Endpoint) int {
	return func(_ Flow, among []*endpoints.Endpoint) int {
		for i, e := range among {
			if e.Addr == a {
				return i
			}
		}
		return 0
	}
}

func TestClientIsResetWhereNoEndpointAnswers(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolTCP)
	at := w.listen(t)
	w.serveAt(at, refusing(t), refusing(t))
	wantReset(t, at)
	eventually(t, "the failure is counted", func() bool { return w.CountConnections().Failed == 1 })
}

func TestResetIsPassedOn(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolTCP)
	at := w.listen(t)
	w.serveAt(at, server(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1))
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
	}))
	c := dialTo(t, at)
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, connectionReset) {
		t.Errorf("got error %v, want %v", err, connectionReset)
	}
}

func TestDeniedConnections(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolTCP)
	at := w.listen(t)
	for name, prepare := range map[string]func(){
		"no snapshot":  func() {},
		"no endpoints": func() { w.serveAt(at) },
		"restricted": func() {
			w.serveAt(at, named(t))
			p := *w.port
			p.Frontends = []proxy.Frontend{p.Frontends[0]}
			p.Frontends[0].Restricted = true
			w.Apply(proxy.NewSnapshot(&proxy.Node{}, &p))
		},
		"another port": func() { w.serveAt(netip.AddrPortFrom(at.Addr(), 1), named(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			prepare()
			wantReset(t, at)
		})
	}
	testenv.Same(t, 4, w.CountConnections().Denied, "denied connections")
}

func TestConnectionLimitMakesClientsWait(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{Connections: 2}, v1.ProtocolTCP)
	at := w.listen(t)
	w.serveAt(at, named(t))
	first, second := dialFrom(t, "127.0.0.2", at), dialFrom(t, "127.0.0.3", at)
	readName(t, first)
	readName(t, second)
	third := dialFrom(t, "127.0.0.4", at)
	testenv.NoError(t, third.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	if _, err := third.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("third connection at a limit of 2: got error %v, want it to wait", err)
	}
	if got := w.CountConnections().Connections; got != 2 {
		t.Errorf("got %d connections, want 2", got)
	}
	shut(first)
	_ = third.SetReadDeadline(time.Now().Add(20 * time.Second))
	readName(t, third)
}

// Connections to a removed endpoint end after the grace period, unless the endpoint returns before.
func TestRemovedEndpointDrains(t *testing.T) {
	t.Parallel()
	const grace = time.Hour
	other := netip.MustParseAddrPort("10.1.0.2:80")
	inMemory(t, Timeouts{Drain: grace}, func(w *fixture, client, endpoint halfCloser) {
		for _, has := range []bool{false, true, false} {
			w.serveAt(memoryFrontend, map[bool]netip.AddrPort{true: memoryEndpoint, false: other}[has])
			time.Sleep(grace - time.Minute)
			if !lives(client, endpoint) {
				t.Fatalf("within the grace period, or with the endpoint (%t): got a closed connection, want an open one", has)
			}
		}
		time.Sleep(2 * time.Minute)
		if lives(client, endpoint) {
			t.Error("after the grace period: got an open connection, want a closed one")
		}
	})
}

func TestClientKeepsItsEndpoint(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolTCP).withAffinity(time.Hour)
	at := w.listen(t)
	one, two, three := named(t), named(t), named(t)
	w.serveAt(at, one, two, three)
	kept, _ := serverNameAt(t, at)
	for range 20 {
		if got, _ := serverNameAt(t, at); got != kept {
			t.Fatalf("got %s, want %s again", got, kept)
		}
	}
	var rest []netip.AddrPort
	for _, a := range []netip.AddrPort{one, two, three} {
		if a.String() != kept {
			rest = append(rest, a)
		}
	}
	w.serveAt(at, rest...)
	other, _ := serverNameAt(t, at)
	w.serveAt(at, one, two, three)
	for range 20 {
		if got, _ := serverNameAt(t, at); got != other || got == kept {
			t.Fatalf("got %s, want %s, and not %s, which was removed", got, other, kept)
		}
	}
	w.withAffinity(time.Nanosecond)
	w.serveAt(at, one, two, three)
	seen := map[string]bool{}
	for range 60 {
		name, _ := serverNameAt(t, at)
		seen[name] = true
	}
	if len(seen) != 3 {
		t.Errorf("with a timeout of 1 ns: got %v, want all endpoints", seen)
	}
}
