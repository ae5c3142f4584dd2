package engine

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
)

// When both sides have said everything, both connections are closed.
func TestConnectionsAreClosedInTheEnd(t *testing.T) {
	inMemory(t, Timeouts{}, func(w *world, client, endpoint halves) {
		for _, c := range []halves{client, endpoint} {
			if err := c.CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		for name, c := range map[string]halves{"client": client, "endpoint": endpoint} {
			if _, err := c.Conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("the connection of the %s: got error %v, want it to be closed", name, err)
			}
		}
		synctest.Wait()
		if got := w.Stats().Connections; got != 0 {
			t.Errorf("got %d connections, want none", got)
		}
	})
}

// Where one side is lost, so is the other one, also in the middle of something.
func TestLossOfOneSideEndsBoth(t *testing.T) {
	inMemory(t, Timeouts{}, func(w *world, client, endpoint halves) {
		out, ok := endpoint.out.(*io.PipeWriter)
		if !ok {
			t.Fatalf("got a %T", endpoint.out)
		}
		_ = out.CloseWithError(syscall.ECONNRESET)
		if _, err := client.Read(make([]byte, 1)); err == nil {
			t.Error("the client reads on")
		}
		synctest.Wait()
		if got := w.Stats().Connections; got != 0 {
			t.Errorf("got %d connections, want none", got)
		}
	})
}

// What cannot be closed by halves is closed when one side has said everything.
func TestConnectionsWithoutHalves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, endpoint := net.Pipe()
		w := newWorld(t, Config{Hooks: Hooks{
			Dial: func(context.Context, Dial) (net.Conn, error) { return inner, nil },
		}}, v1.ProtocolTCP)
		w.serveAt(memoryFrontend, memoryEndpoint)
		l := &memoryListener{make(chan net.Conn), make(chan struct{})}
		w.open(t, Door{Listener: l})
		client, outer := connected()
		l.conns <- outer
		if err := client.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if _, err := endpoint.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("got error %v, want %v", err, io.EOF)
		}
		shut(client)
	})
}

// What one goroutine has read and could not write is what the next one begins with.
func TestTheRestIsWrittenFirst(t *testing.T) {
	w := newWorld(t, Config{}, v1.ProtocolTCP)
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
	buf := w.buffers.small.get()
	n := copy(*buf, "first ")
	if err := w.copy(&link{}, &way{from: from, to: to, rest: (*buf)[:n], buf: buf}); err != nil {
		t.Error(err)
	}
	shut(to)
	if got := <-got; got != "first second" {
		t.Errorf("got %q, want %q", got, "first second")
	}
}

// tcpPair gives both ends of a connection of package net.
func tcpPair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer shut(l)
	a = dialTo(t, addrOf(l.Addr()))
	if b, err = l.AcceptTCP(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(b) })
	return a, b
}

// Connections of package net carry bulk data too: as long as it keeps coming, and
// no longer, so that a silent one holds nothing.
func TestBurstsOfForeignConnections(t *testing.T) {
	w := newWorld(t, Config{}, v1.ProtocolTCP)
	source, from := tcpPair(t)
	to, sink := tcpPair(t)
	l := &link{}
	move := w.burstConns(l, to, from)
	if move == nil {
		t.Fatal("nothing moves data between connections of package net")
	}
	want := bytes.Repeat([]byte("0123456789"), 1000)
	if _, err := source.Write(want); err != nil {
		t.Fatal(err)
	}
	if err := move(); err != nil {
		t.Fatalf("when no more comes: %v", err)
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(sink, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes and error %v, want what was sent", len(got), err)
	}
	if l.used.Load() == 0 {
		t.Error("the connection was not used")
	}
	said := make(chan struct{})
	time.AfterFunc(2*lull, func() {
		defer close(said)
		_, _ = source.Write([]byte("x"))
		_ = source.CloseWrite()
	})
	if _, err := from.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) || err != nil {
		t.Errorf("after that: got error %v, want it to wait as before", err)
	}
	<-said // or it may take longer than a lull until the end
	if err := move(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: got error %v, want %v", err, io.EOF)
	}
	if move := w.burstConns(l, to, &net.UnixConn{}); move != nil {
		t.Error("something moves data of what is not TCP")
	}
}
