package engine

import (
	"net"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine/tcpconn"
	"github.com/vipkit/vipkit/internal/testenv"
)

// The engine adopts connections of package net, from a listener or dialer of the caller.
func TestForeignConnectionsAreAdopted(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{Hooks: Hooks{Dial: dialAny}}, v1.ProtocolTCP)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	testenv.NoError(t, err)
	w.open(t, Listener{Listener: l})
	at := addrOf(l.Addr())
	want := named(t)
	w.serveAt(at, want)
	name, c := serverNameAt(t, at)
	if name != want.String() {
		t.Errorf("got %s, want %v", name, want)
	}
	links := w.connections()
	if len(links) != 1 {
		t.Errorf("connections: got %d, want 1", len(links))
	}
	for _, l := range links {
		l.mu.Lock()
		for _, side := range []net.Conn{l.client, l.upstream} {
			if s, ok := side.(*tcpconn.Conn); !ok || !addrOf(s.RemoteAddr()).IsValid() || !addrOf(s.LocalAddr()).IsValid() {
				t.Errorf("a side of the connection: got %T (%+v), want one of package tcpconn with its addresses", side, side)
			}
		}
		l.mu.Unlock()
	}
	shut(c)
	eventually(t, "the connection has ended", func() bool { return w.Stats().Connections == 0 })
}
