package netns_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func link(t *testing.T, a *netns.NS, aName string, b *netns.NS, bName string) {
	t.Helper()
	testenv.NoError(t, netns.Link(netns.End{NS: a, Name: aName}, netns.End{NS: b, Name: bName}))
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		testenv.NoError(t, err)
	}
}

// A port of a bridge gets the hairpin mode that AddPort is called with.
func TestHairpin(t *testing.T) {
	t.Parallel()
	bridge := newNS(t)
	must(t, bridge.AddBridge("br0"))
	for i, hairpin := range []bool{true, false} {
		port := fmt.Sprintf("port%d", i)
		link(t, bridge, port, newNS(t), "eth0")
		must(t, bridge.AddPort("br0", port, hairpin))
		l, err := bridge.Netlink().LinkByName(port)
		must(t, err)
		got, err := bridge.Netlink().LinkGetProtinfo(l)
		must(t, err)
		testenv.Same(t, hairpin, got.Hairpin, "hairpin mode of %s", port)
	}
}

const udpPort = 5353

// ask opens a socket of a client, and sends requests without waiting for replies.
func ask(t *testing.T, ns *netns.NS, address string, questions int) net.Conn {
	t.Helper()
	conn, err := ns.Dial(t.Context(), "udp", netip.AddrPortFrom(netip.MustParseAddr(address), udpPort).String())
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	testenv.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	for range questions {
		if _, err := conn.Write([]byte("who?")); err != nil {
			t.Fatal(err)
		}
	}
	return conn
}

// A server answers from the address that a request was sent to, and loses no request that
// was sent while it did not read.
func TestUDPServer(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	questions := 2000
	if os.Getenv("VIPKIT_USER_NAMESPACE") != "" {
		questions = 100 // There, the buffer is limited by net.core.rmem_max.
	}
	server, err := ns.ListenUDP(t.Context(), udpPort)
	testenv.NoError(t, err)
	conns := []net.Conn{ask(t, ns, "127.0.0.2", questions-1), ask(t, ns, "::1", 1)}
	asked, done := make(chan struct{}, questions), make(chan struct{})
	go func() {
		defer close(done)
		server.Serve(func(question []byte, client, own netip.AddrPort) []byte {
			asked <- struct{}{}
			return fmt.Appendf(nil, "%s %v %v", question, client, own)
		})
	}()
	for i := range questions {
		select {
		case <-asked:
		case <-time.After(time.Minute):
			t.Fatalf("requests that the server received: got %d, want %d", i, questions)
		}
	}
	for _, conn := range conns {
		buf := make([]byte, netns.MaxDatagram)
		want := fmt.Sprintf("who? %v %v", conn.LocalAddr(), conn.RemoteAddr())
		if n, err := conn.Read(buf); err != nil || string(buf[:n]) != want {
			t.Errorf("reply: got %q, error %v, want %q", buf[:n], err, want)
		}
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	<-done
}
