package engine

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine/tcpconn"
	"github.com/vipkit/vipkit/internal/testenv"
)

// When both sides have sent everything, both connections are closed.
func TestConnectionsAreClosedInTheEnd(t *testing.T) {
	t.Parallel()
	inMemory(t, Timeouts{}, func(w *fixture, client, endpoint halfCloser) {
		for _, c := range []halfCloser{client, endpoint} {
			testenv.NoError(t, c.CloseWrite())
		}
		for name, c := range map[string]halfCloser{"client": client, "endpoint": endpoint} {
			if _, err := c.Conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("the connection of the %s: got error %v, want %v", name, err, io.EOF)
			}
		}
		synctest.Wait()
		if got := w.Stats().Connections; got != 0 {
			t.Errorf("got %d connections, want none", got)
		}
	})
}

// If one side is lost, the other one is closed, also while data is being carried.
func TestLossOfOneSideEndsBoth(t *testing.T) {
	t.Parallel()
	inMemory(t, Timeouts{}, func(w *fixture, client, endpoint halfCloser) {
		out, ok := endpoint.out.(*io.PipeWriter)
		if !ok {
			t.Fatalf("got a %T, want a *io.PipeWriter", endpoint.out)
		}
		_ = out.CloseWithError(connectionReset)
		if _, err := client.Read(make([]byte, 1)); err == nil {
			t.Error("reading as the client: got no error, want one")
		}
		synctest.Wait()
		if got := w.Stats().Connections; got != 0 {
			t.Errorf("got %d connections, want none", got)
		}
	})
}

// A connection without half-close is closed when the other side has sent everything.
func TestConnectionsWithoutHalfClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner, endpoint := net.Pipe()
		w := newFixture(t, Config{Hooks: Hooks{
			Dial: func(context.Context, Dial) (net.Conn, error) { return inner, nil },
		}}, v1.ProtocolTCP)
		w.serveAt(memoryFrontend, memoryEndpoint)
		l := &memoryListener{make(chan net.Conn), make(chan struct{})}
		w.open(t, Listener{Listener: l})
		client, outer := connected()
		l.conns <- outer
		testenv.NoError(t, client.CloseWrite())
		if _, err := endpoint.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("got error %v, want %v", err, io.EOF)
		}
		shut(client)
	})
}

// Data that Exchange has read and not written is written before data that is read later.
func TestUnsentDataIsWrittenFirst(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolTCP)
	from, source := net.Pipe()
	sink, to := net.Pipe()
	go func() {
		_, _ = source.Write([]byte("second"))
		shut(source)
	}()
	got := make(chan string, 1)
	go func() {
		all, _ := io.ReadAll(sink)
		got <- string(all)
	}()
	buf := w.buffers.small.Get()
	n := copy(*buf, "first ")
	if err := w.copy(&connection{}, &tcpconn.Direction{From: from, To: to, Unsent: (*buf)[:n], Buffer: buf}); err != nil {
		t.Error(err)
	}
	shut(to)
	if got := <-got; got != "first second" {
		t.Errorf("got %q, want %q", got, "first second")
	}
}

// Connections of package net, which the engine failed to adopt, carry bulk data, too.
func TestCopyBetweenConnectionsOfPackageNet(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolTCP)
	source, from := tcpPair(t)
	to, sink := tcpPair(t)
	want := bytes.Repeat([]byte("0123456789"), 1<<17)
	go func() {
		_, _ = source.Write(want)
		_ = source.CloseWrite()
	}()
	l := &connection{}
	ended := make(chan error, 1)
	go func() {
		err := w.copy(l, &tcpconn.Direction{From: from, To: to})
		ended <- errors.Join(err, to.CloseWrite())
	}()
	if got, err := io.ReadAll(sink); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes and error %v, want the %d sent bytes", len(got), err, len(want))
	}
	if err := <-ended; err != nil || l.used.Load() == 0 {
		t.Errorf("got error %v and last use %d, want no error and a use", err, l.used.Load())
	}
}

// tcpPair returns both ends of a connection of package net.
func tcpPair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	testenv.NoError(t, err)
	defer shut(l)
	a = dialTo(t, addrOf(l.Addr()))
	if b, err = l.AcceptTCP(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(b) })
	return a, b
}

// splicing is a connection that counts calls of Splice.
type splicing struct {
	net.Conn

	times int
}

func (s *splicing) Splice(_ net.Conn, used func(to net.Conn, n int)) error {
	s.times++
	used(nil, 0)
	return nil
}

// After a piece that fills the buffer, Splice is called, unless all pipes are in use.
func TestBulkDataIsSpliced(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ size, limit, want int }{
		"small":         {100, 1, 0},
		"bulk":          {3 * 16 << 10, 1, 3},
		"without pipes": {3 * 16 << 10, 0, 0},
	} {
		w := newFixture(t, Config{}, v1.ProtocolTCP)
		w.tasks.pipes.limit = int64(c.limit)
		source, from := net.Pipe()
		sink, to := net.Pipe()
		go func() {
			_, _ = source.Write(make([]byte, c.size))
			shut(source)
		}()
		got := make(chan int64, 1)
		go func() {
			n, _ := io.Copy(io.Discard, sink)
			got <- n
		}()
		s := &splicing{Conn: from}
		err := w.copy(&connection{}, &tcpconn.Direction{From: s, To: to})
		shut(to)
		if n := <-got; err != nil || n != int64(c.size) || s.times != c.want {
			t.Errorf("%s: got %d bytes, %d splices and error %v, want %d bytes and %d splices", name, n, s.times, err, c.size, c.want)
		}
		if n := w.tasks.pipes.taken.Load(); n != 0 {
			t.Errorf("%s: pipes in use at the end: got %d, want none", name, n)
		}
	}
}
