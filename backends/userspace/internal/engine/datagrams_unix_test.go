//go:build unix

package engine

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// fullPair returns the ends of a socket pair. Nothing reads far, so that near becomes full.
func fullPair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_DGRAM, 0)
	testenv.NoError(t, err)
	conns := make([]net.Conn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		conns[i], err = net.FileConn(f)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { shut(conns[i]) })
	}
	return conns[0], conns[1]
}

// A session whose socket is full does not delay other sessions.
func TestFullSocketsDelayNoOtherSession(t *testing.T) {
	t.Parallel()
	near, _ := fullPair(t)
	other := newFakeSocket()
	slow, quick := netip.MustParseAddrPort("10.1.0.1:80"), netip.MustParseAddrPort("10.1.0.2:80")
	w := newFixture(t, Config{Hooks: Hooks{
		Pick: pickIfThere(slow),
		Dial: func(_ context.Context, d Dial) (net.Conn, error) {
			if d.To == slow {
				return near, nil
			}
			return other, nil
		},
	}}, v1.ProtocolUDP)
	w.serveAt(memoryFrontend, slow)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 1000 { // more than the socket's buffer holds
			w.Datagram(memoryFlow(), []byte("?"), nil)
		}
		f := memoryFlow()
		f.Client = netip.AddrPortFrom(alice, 1)
		w.serveAt(memoryFrontend, quick)
		w.Datagram(f, []byte("!"), nil)
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("datagrams for one endpoint delay those for another one")
	}
	wantSent(t, other, "!")
}
