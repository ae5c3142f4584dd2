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
	random := testenv.Random(t)
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

func TestRemovedEndpointDrains(t *testing.T) {
	t.Parallel()
	const grace = time.Hour
	w := newFixture(t, Config{Timeouts: Timeouts{Drain: grace, Session: 40 * time.Millisecond}}, v1.ProtocolTCP)
	at := w.listen(t)
	one, two := named(t), named(t)
	w.serveAt(at, one)
	_, old := serverNameAt(t, at)
	w.serveAt(at, two)
	if got, _ := serverNameAt(t, at); got != two.String() {
		t.Fatalf("after removing %v: got %s, want %v", one, got, two)
	}
	if _, err := old.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(old, make([]byte, 1)); err != nil {
		t.Errorf("within the grace period: got error %v, want an answer", err)
	}
	draining := 0
	for _, l := range w.connections() {
		end := time.Duration(l.end.Load())
		if end == 0 {
			continue
		}
		draining++
		if left := end - w.now(); left > grace || left < grace-time.Minute {
			t.Errorf("grace period of the connection to %v: got %v, want %v", one, left, grace)
		}
		l.end.Store(int64(w.now())) // as after the grace period
	}
	if draining != 1 {
		t.Errorf("connections with a grace period: got %d, want the one to %v", draining, one)
	}
	if _, err := old.Read(make([]byte, 1)); !errors.Is(err, connectionReset) {
		t.Errorf("after the grace period: got error %v, want %v", err, connectionReset)
	}
	eventually(t, "only the new connection is left", func() bool { return w.CountConnections().Connections == 1 })
}

func TestReturningEndpointKeepsItsConnections(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{Timeouts: Timeouts{Drain: time.Hour}}, v1.ProtocolTCP)
	at := w.listen(t)
	one, two := named(t), named(t)
	w.serveAt(at, one)
	_, c := serverNameAt(t, at)
	w.serveAt(at, two)
	w.serveAt(at, one, two)
	links := w.connections()
	testenv.Same(t, 1, len(links), "connections")
	for _, l := range links {
		if end := l.end.Load(); end != 0 {
			t.Errorf("end of the connection to %v, which has returned: got %v, want none", l.endpoint, time.Duration(end))
		}
	}
	shut(c)
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
