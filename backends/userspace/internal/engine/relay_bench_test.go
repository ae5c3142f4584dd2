package engine

import (
	"io"
	"net"
	"testing"

	v1 "k8s.io/api/core/v1"
)

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
