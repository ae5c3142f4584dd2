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

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

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
		w.Serve(Listener{Listener: l})
		client, outer := connected()
		l.conns <- outer
		testenv.NoError(t, client.CloseWrite())
		if _, err := endpoint.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("got error %v, want %v", err, io.EOF)
		}
		shut(client)
	})
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

// After a piece that fills the buffer, the kernel moves the data, unless all pipes are in use. A
// connection that is silent afterwards holds no pipe, and carries further data.
func TestBulkDataIsSpliced(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		size  int
		limit int
		want  bool
	}{
		"small":         {100, 1, false},
		"bulk":          {16 << 20, 1, true}, // more than the buffers of the sockets hold
		"without pipes": {16 << 20, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t, Config{}, v1.ProtocolTCP)
			w.tasks.pipes = make(bound, min(c.limit, w.config.pipes()))
			source, from := tcpPair(t)
			to, sink := tcpPair(t)
			l, ended := &connection{client: from}, make(chan error, 1)
			go func() { ended <- errors.Join(w.copy(l, to, from), to.CloseWrite()) }()
			want := bytes.Repeat([]byte("0123456789"), c.size/10)
			sent := make(chan error, 1)
			go func() {
				_, err := source.Write(want)
				sent <- err
			}()
			spliced := false
			for got := make([]byte, 0, len(want)); len(got) < len(want); {
				n, err := sink.Read(got[len(got):cap(got)])
				testenv.NoError(t, err)
				if !bytes.Equal(got[len(got):len(got)+n], want[len(got):len(got)+n]) {
					t.Fatal("got other bytes than were sent")
				}
				got = got[:len(got)+n]
				spliced = spliced || len(w.tasks.pipes) > 0
			}
			if want := c.want && w.config.pipes() > 0; spliced != want {
				t.Errorf("pipes were in use: got %t, want %t", spliced, want)
			}
			eventually(t, "a silent connection holds no pipe", func() bool { return len(w.tasks.pipes) == 0 })
			testenv.NoError(t, errors.Join(<-sent, writeAll(source, []byte("x")), source.CloseWrite()))
			if rest, err := io.ReadAll(sink); err != nil || string(rest) != "x" {
				t.Errorf("after a silence: got %q and error %v, want %q", rest, err, "x")
			}
			testenv.NoError(t, <-ended)
			if got, want := w.counts.bytes[toEndpoint].Load(), uint64(len(want)+1); got != want || l.used.Load() == 0 {
				t.Errorf("got %d bytes counted and last use %d, want %d bytes and a use", got, l.used.Load(), want)
			}
		})
	}
}

func writeAll(to io.Writer, b []byte) error {
	_, err := to.Write(b)
	return err
}
