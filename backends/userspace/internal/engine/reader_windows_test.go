package engine

import (
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// readers are a connection, and a reader of what is written to it.
func readers(t *testing.T, network string) (near net.Conn, far *reader) {
	t.Helper()
	if network == "udp4" {
		c := udpSocket(t)
		return newUDPClient(t, addrOf(c.LocalAddr())), newReader(c)
	}
	accepted, end := make(chan net.Conn, 1), make(chan struct{})
	at := server(t, func(c net.Conn) {
		accepted <- c
		<-end
	})
	t.Cleanup(func() { close(end) })
	return dialTo(t, at), newReader(<-accepted)
}

// A reader has no buffer before there is something to read.
func TestReadersOfSilentConnections(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"tcp4", "udp4"} {
		t.Run(network, func(t *testing.T) {
			near, far := readers(t, network)
			var written, early atomic.Bool
			buffers := newPool(100)
			lend := buffers.pool.New
			buffers.pool.New = func() any {
				if !written.Load() {
					early.Store(true)
				}
				return lend()
			}
			for range 50 {
				written.Store(false)
				got := make(chan error, 1)
				go func() {
					buf, n, err := far.read(buffers) // the buffer is not put back
					if err == nil && string((*buf)[:n]) != "hello" {
						t.Errorf("got %q, want hello", (*buf)[:n])
					}
					got <- err
				}()
				for range 10 { // let the reader begin
					runtime.Gosched()
				}
				written.Store(true)
				if _, err := io.WriteString(near, "hello"); err != nil {
					t.Fatal(err)
				}
				testenv.NoError(t, <-got)
			}
			if early.Load() {
				t.Error("a reader got its buffer before there was something to read")
			}
		})
	}
}
