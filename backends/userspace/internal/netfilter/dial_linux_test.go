package netfilter

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// namer starts a server that answers datagrams with its own address, which it returns.
func namer(t *testing.T, ns *netns.NS, at string) netip.AddrPort {
	t.Helper()
	c, err := ns.ListenPacket(t.Context(), "udp", at)
	testenv.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for buf := make([]byte, 100); ; {
			_, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteTo([]byte(c.LocalAddr().String()), from)
		}
	}()
	t.Cleanup(func() {
		_ = c.Close()
		<-done
	})
	return netip.MustParseAddrPort(c.LocalAddr().String())
}

// dialerIn returns a dialer in a namespace.
func dialerIn(t *testing.T, ns *netns.NS) *borrowingDialer {
	t.Helper()
	return newDialer(socketsIn(t, ns))
}

// checkAnswer sends a datagram, and checks that the answer is of the given server.
func checkAnswer(t *testing.T, c net.Conn, want netip.AddrPort) {
	t.Helper()
	if _, err := c.Write([]byte("?")); err != nil {
		t.Error(err)
		return
	}
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	if got := string(buf[:n]); err != nil || got != want.String() {
		t.Errorf("%v to %v: got %q and error %v, want %q", c.LocalAddr(), want, got, err, want)
	}
}

// Each endpoint can be reached from all ports at a time, whatever ports other endpoints use.
// Then Dial fails at once, until a port is returned.
func TestDatagramsShareSourcePorts(t *testing.T) {
	t.Parallel()
	ns := netnstest.NewNS(t)
	one, two := namer(t, ns, "127.0.0.1:8081"), namer(t, ns, "127.0.0.1:8082")
	s := dialerIn(t, ns)
	const ports = 5
	s.ports = newPorts(firstSourcePort, ports)
	open := map[netip.AddrPort][]net.Conn{}
	for _, to := range []netip.AddrPort{one, two} {
		for range ports {
			c, err := s.Dial(t.Context(), engine.Dial{Protocol: v1.ProtocolUDP, To: to})
			testenv.NoError(t, err)
			t.Cleanup(func() { _ = c.Close() })
			open[to] = append(open[to], c)
		}
		if c, err := s.Dial(t.Context(), engine.Dial{Protocol: v1.ProtocolUDP, To: to}); !errors.Is(err, engine.ErrNoPort) {
			t.Errorf("with all ports in use: got %v and error %v, want %v", c, err, engine.ErrNoPort)
		}
	}
	for range 2 {
		for to, conns := range open {
			for _, c := range conns {
				checkAnswer(t, c, to)
			}
		}
	}
	_ = open[one][0].Close()
	c, err := s.Dial(t.Context(), engine.Dial{Protocol: v1.ProtocolUDP, To: one})
	if err != nil {
		t.Fatalf("after a port was returned: got error %v, want none", err)
	}
	checkAnswer(t, c, one)
	_ = c.Close()
}

// If programs of the node use many ports in a row, no datagram and no connection is lost as long
// as there is a free port.
func TestPortsInUseAreSkipped(t *testing.T) {
	t.Parallel()
	ns := netnstest.NewNS(t)
	const taken, free = 100, 200
	var others []io.Closer
	for i := range taken {
		at := fmt.Sprintf("[::]:%d", int(firstSourcePort)+i)
		p, err := ns.ListenPacket(t.Context(), "udp", at)
		testenv.NoError(t, err)
		t.Cleanup(func() { _ = p.Close() })
		others = append(others, p)
		l, err := ns.Listen(t.Context(), "tcp", at)
		testenv.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
	}
	s := dialerIn(t, ns)
	s.ports = newPorts(firstSourcePort, taken+free)
	d := engine.Dial{Protocol: v1.ProtocolUDP, To: namer(t, ns, "127.0.0.1:8081")}
	for i := range free {
		c, err := s.Dial(t.Context(), d)
		if err != nil {
			t.Fatalf("session %d with %d free ports: got error %v, want none", i+1, free, err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	if c, err := s.Dial(t.Context(), d); !errors.Is(err, engine.ErrNoPort) {
		t.Errorf("without a free port: got %v and error %v, want %v", c, err, engine.ErrNoPort)
	}
	for _, other := range others {
		_ = other.Close()
	}
	for i := range taken {
		c, err := s.Dial(t.Context(), d)
		if err != nil {
			t.Fatalf("session %d after other programs have closed %d sockets: got error %v, want none", i+1, taken, err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	l, err := ns.Listen(t.Context(), "tcp", "127.0.0.1:8081")
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	for i := range free {
		c, err := s.Dial(t.Context(), engine.Dial{Protocol: v1.ProtocolTCP, To: d.To})
		if err != nil {
			t.Fatalf("connection %d of %d: got error %v, want none", i+1, free, err)
		}
		_ = c.Close()
	}
}

// All addresses of the node share their source ports; the ports of a client's address are
// counted separately.
func TestNodeAddressesSharePorts(t *testing.T) {
	t.Parallel()
	ns := netnstest.NewNS(t)
	s := dialerIn(t, ns)
	s.ports = newPorts(firstSourcePort, 1)
	to, here, client := namer(t, ns, "127.0.0.1:8081"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	for _, d := range []struct {
		dial engine.Dial
		want error
	}{
		{engine.Dial{Protocol: v1.ProtocolUDP, To: to, From: here, FromNode: true}, nil},
		{engine.Dial{Protocol: v1.ProtocolUDP, To: to}, engine.ErrNoPort},
		{engine.Dial{Protocol: v1.ProtocolUDP, To: to, From: client}, nil},
		{engine.Dial{Protocol: v1.ProtocolUDP, To: to, From: client}, engine.ErrNoPort},
	} {
		c, err := s.Dial(t.Context(), d.dial)
		if !errors.Is(err, d.want) {
			t.Errorf("%+v: got error %v, want %v", d.dial, err, d.want)
		}
		if err == nil {
			t.Cleanup(func() { _ = c.Close() })
		}
	}
}
