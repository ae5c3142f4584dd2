package engine

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// halfCloser is one end of a connection in memory that can be half-closed.
type halfCloser struct {
	net.Conn
	in  io.ReadCloser
	out io.WriteCloser
}

func (h halfCloser) Read(b []byte) (int, error)  { return h.in.Read(b) }
func (h halfCloser) Write(b []byte) (int, error) { return h.out.Write(b) }
func (h halfCloser) CloseWrite() error           { return h.out.Close() }
func (h halfCloser) Close() error                { return errors.Join(h.in.Close(), h.out.Close(), h.Conn.Close()) }
func (h halfCloser) LocalAddr() net.Addr         { return net.TCPAddrFromAddrPort(memoryFrontend) }
func (h halfCloser) RemoteAddr() net.Addr        { return net.TCPAddrFromAddrPort(memoryClient) }

var (
	memoryFrontend = netip.MustParseAddrPort("10.96.0.1:80")
	memoryClient   = netip.MustParseAddrPort("10.0.0.9:4321")
	memoryEndpoint = netip.MustParseAddrPort("10.0.0.5:8080")
)

func connected() (a, b halfCloser) {
	one, two := net.Pipe() // for the methods that the tests do not call, such as deadlines
	r1, w1 := io.Pipe()
	r2, w2 := io.Pipe()
	return halfCloser{one, r1, w2}, halfCloser{two, r2, w1}
}

// memoryListener accepts connections in memory.
type memoryListener struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Close() error {
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	return nil
}

func (l *memoryListener) Addr() net.Addr { return net.TCPAddrFromAddrPort(memoryFrontend) }

// inMemory runs f with the two outer ends of a connection through an engine, in
// a bubble of its own time.
func inMemory(t *testing.T, timeouts Timeouts, f func(w *fixture, client, endpoint halfCloser)) {
	synctest.Test(t, func(t *testing.T) {
		inner, endpoint := connected()
		w := newFixture(t, Config{Timeouts: timeouts, Hooks: Hooks{
			Dial: func(context.Context, Dial) (net.Conn, error) { return inner, nil },
		}}, v1.ProtocolTCP)
		w.serveAt(memoryFrontend, memoryEndpoint)
		l := &memoryListener{make(chan net.Conn), make(chan struct{})}
		w.Serve(Listener{Listener: l})
		client, outer := connected()
		l.conns <- outer
		synctest.Wait()
		f(w, client, endpoint)
		_ = client.Close()
		_ = endpoint.Close()
	})
}

// lives sends a byte from one end to the other, and reports whether it arrived.
func lives(from, to halfCloser) bool {
	sent := make(chan error, 1)
	go func() {
		_, err := from.Write([]byte("x"))
		sent <- err
	}()
	_, err := io.ReadFull(to, make([]byte, 1))
	return err == nil && <-sent == nil
}

func TestIdleConnectionsEnd(t *testing.T) {
	inMemory(t, Timeouts{Idle: time.Minute}, func(w *fixture, client, endpoint halfCloser) {
		for range 5 {
			time.Sleep(50 * time.Second)
			if !lives(client, endpoint) {
				t.Fatal("a connection that is used now and then has ended")
			}
			time.Sleep(50 * time.Second)
			if !lives(endpoint, client) {
				t.Fatal("a connection on which only one side sends has ended")
			}
		}
		start := time.Now()
		if _, err := client.Read(make([]byte, 1)); err == nil {
			t.Fatal("got data, want a closed connection")
		}
		if took := time.Since(start); took < time.Minute || took > 75*time.Second {
			t.Errorf("end of a silent connection: got it after %v, want about %v", took, time.Minute)
		}
		synctest.Wait()
		if n := w.CountConnections().Connections; n != 0 {
			t.Errorf("got %d connections, want none", n)
		}
	})
}

func TestHalfClosedConnectionsEndSooner(t *testing.T) {
	inMemory(t, Timeouts{Idle: time.Hour, HalfClosed: 10 * time.Second}, func(_ *fixture, client, endpoint halfCloser) {
		time.Sleep(30 * time.Minute)
		_ = client.CloseWrite()
		if _, err := endpoint.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Fatalf("got error %v, want %v", err, io.EOF)
		}
		for range 5 {
			time.Sleep(7 * time.Second)
			if !lives(endpoint, client) {
				t.Fatal("the other half has ended while it was used")
			}
		}
		start := time.Now()
		if _, err := client.Read(make([]byte, 1)); err == nil {
			t.Fatal("got data, want a closed connection")
		}
		if took := time.Since(start); took > 13*time.Second {
			t.Errorf("end of a silent half: got it after %v, want about 10 s", took)
		}
	})
}

func TestStuckWritesEnd(t *testing.T) {
	t.Parallel()
	inMemory(t, Timeouts{Idle: time.Minute}, func(w *fixture, client, _ halfCloser) {
		if _, err := client.Write([]byte("never read")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(80 * time.Second)
		synctest.Wait()
		if n := w.CountConnections().Connections; n != 0 {
			t.Errorf("got %d connections, want none: the endpoint has read nothing for longer than the idle timeout", n)
		}
	})
}

// The default timeouts of the attempts are as documented.
func TestDialTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var tries []time.Duration
		start := time.Now()
		dial := func(ctx context.Context, _ Dial) (net.Conn, error) {
			tries = append(tries, time.Since(start))
			<-ctx.Done()
			return nil, ctx.Err()
		}
		w := newFixture(t, Config{Hooks: Hooks{Dial: dial}}, v1.ProtocolTCP)
		w.serveAt(memoryFrontend, memoryEndpoint)
		d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
		if _, _, err := w.connect(t.Context(), &d); !errors.Is(err, errNoEndpoint) {
			t.Fatalf("got error %v, want %v", err, errNoEndpoint)
		}
		want := []time.Duration{0, 250 * time.Millisecond, 750 * time.Millisecond, 1750 * time.Millisecond}
		if len(tries) != len(want) || time.Since(start) != 3750*time.Millisecond {
			t.Fatalf("got attempts at %v, %v in all, want %v and 3.75s", tries, time.Since(start), want)
		}
		for i := range want {
			if tries[i] != want[i] {
				t.Errorf("attempt %d: got it after %v, want %v", i, tries[i], want[i])
			}
		}
	})
}

func TestWhenConnectionsAreOverdue(t *testing.T) {
	t.Parallel()
	const idle, halfClosed = time.Minute, 10 * time.Second
	for name, c := range map[string]struct {
		dialing, half bool
		used, end     time.Duration
		from          time.Duration // when it is overdue; zero: never
		timeouts      Timeouts
	}{
		"silent":                     {used: time.Second, from: 61 * time.Second},
		"silent half":                {used: time.Second, half: true, from: 11 * time.Second},
		"idle timeout is shorter":    {half: true, from: 5 * time.Second, timeouts: Timeouts{Idle: 5 * time.Second, HalfClosed: halfClosed}},
		"grace period is over":       {used: 29 * time.Second, end: 30 * time.Second, from: 30 * time.Second},
		"being dialed":               {dialing: true},
		"being dialed after the end": {dialing: true, end: time.Second},
	} {
		p := snapshots.Port("web", "")
		l, timeouts := &connection{port: p, end: c.end}, c.timeouts
		if timeouts.Idle == 0 {
			timeouts = Timeouts{Idle: idle, HalfClosed: halfClosed}
		}
		served := proxy.NewSnapshot(&proxy.Node{}, p)
		if c.end != 0 {
			served = proxy.NewSnapshot(&proxy.Node{})
		}
		l.relaying.Store(!c.dialing)
		l.half.Store(c.half)
		l.touch(c.used)
		for now := c.used; now < 2*time.Minute; now += time.Second {
			if got, want := l.overdue(now, &timeouts, served), c.from != 0 && now >= c.from; got != want {
				t.Errorf("%s: overdue after %v: got %v, want %v", name, now, got, want)
				break
			}
		}
	}
}
