package engine

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Both sides may send more at a time than the buffers hold, and neither waits for the other:
// the data may become too much for one goroutine at any moment.
func TestBothSidesSendAtOnce(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolTCP)
	at := w.listen(t)
	const size = 8 << 20
	w.serveAt(at, server(t, func(c net.Conn) {
		_, _ = c.Write(make([]byte, size)) // before it reads anything
		n, _ := io.Copy(io.Discard, c)
		if n != size {
			t.Errorf("the endpoint got %d bytes, want %d", n, size)
		}
	}))
	for _, pieces := range []int{100, 16 << 10, 1 << 20} {
		c := dialTo(t, at)
		var wg sync.WaitGroup
		wg.Go(func() {
			for sent := 0; sent < size; {
				n, err := c.Write(make([]byte, min(pieces*50, size-sent)))
				if err != nil {
					t.Error(err)
					return
				}
				sent += n
			}
			_ = c.CloseWrite()
		})
		time.Sleep(time.Millisecond) // in most runs, the client's window is full by now
		n, err := io.Copy(io.Discard, c)
		if err != nil || n != size {
			t.Errorf("the client got %d bytes and error %v, want %d", n, err, size)
		}
		wg.Wait()
	}
	eventually(t, "no connection is left", func() bool { return w.Stats().Connections == 0 })
	if got, want := w.Stats().Bytes, [2]uint64{3 * size, 3 * size}; got != want {
		t.Errorf("bytes to the endpoint and back: got %v, want %v", got, want)
	}
}

// One connection carries requests and answers of any size, one after the other.
func TestRequestsAndAnswersOfAllSizes(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolTCP)
	at := w.listen(t)
	w.serveAt(at, server(t, func(c net.Conn) { _, _ = io.Copy(c, c) }))
	c := dialTo(t, at)
	sum := uint64(0)
	for i := range 400 {
		size := 1 + i*i%40_000
		sum += uint64(size)
		want := bytes.Repeat([]byte{byte(i)}, size)
		got := make([]byte, size)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = c.Write(want) })
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("request %d of %d bytes: got error %v or another answer, want the request echoed", i, size, err)
		}
		wg.Wait()
	}
	_ = c.CloseWrite()
	if rest, err := io.ReadAll(c); err != nil || len(rest) != 0 {
		t.Errorf("after the end: got %d bytes and error %v, want none", len(rest), err)
	}
	if got, want := w.Stats().Bytes, [2]uint64{sum, sum}; got != want {
		t.Errorf("bytes to the endpoint and back: got %v, want %v", got, want)
	}
}

// BenchmarkRelay carries data through the engine: as bulk data, which the kernel moves, and as requests with
// answers.
func BenchmarkRelay(b *testing.B) {
	const piece = 1 << 20
	b.Run("bulk", func(b *testing.B) {
		c := throughEngine(b, func(c net.Conn) { _, _ = io.Copy(io.Discard, c); shut(c) })
		data := make([]byte, piece)
		b.SetBytes(piece)
		for b.Loop() {
			if _, err := c.Write(data); err != nil {
				b.Fatal(err)
			}
		}
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c) // The server has everything.
	})
	b.Run("requests", func(b *testing.B) {
		c := throughEngine(b, func(c net.Conn) { _, _ = io.Copy(c, c) })
		buf := make([]byte, 100)
		for b.Loop() {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// throughEngine returns a client's connection through an engine to a server.
func throughEngine(b *testing.B, serve func(net.Conn)) *net.TCPConn {
	b.Helper()
	w := newFixture(b, Config{}, v1.ProtocolTCP)
	at := w.listen(b)
	w.serveAt(at, server(b, serve))
	return dialTo(b, at)
}
