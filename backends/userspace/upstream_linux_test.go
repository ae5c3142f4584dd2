package userspace

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
)

// namer answers datagrams with its own address.
func namer(t *testing.T, ns *netns.NS, at string) netip.AddrPort {
	t.Helper()
	c, err := ns.ListenPacket(t.Context(), "udp", at)
	if err != nil {
		t.Fatal(err)
	}
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

// socketsIn gives what makes sockets in a namespace.
func socketsIn(t *testing.T, ns *netns.NS) (s *sockets) {
	t.Helper()
	if err := ns.Do(func() (err error) {
		s, err = newSockets()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.close() })
	return s
}

// asks sends a datagram and wants the answer of that server alone.
func asks(t *testing.T, c net.Conn, want netip.AddrPort) {
	t.Helper()
	if _, err := c.Write([]byte("?")); err != nil {
		t.Error(err)
		return
	}
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	if got := string(buf[:n]); err != nil || got != want.String() {
		t.Errorf("%v to %v: got %q and error %v", c.LocalAddr(), want, got, err)
	}
}

// Each endpoint can be reached from all ports at a time, whatever others are
// reached from; then there is none left, at once, until one is given back.
func TestDatagramsShareSourcePorts(t *testing.T) {
	ns := netnstest.NewNS(t)
	one, two := namer(t, ns, "127.0.0.1:8081"), namer(t, ns, "127.0.0.1:8082")
	s := socketsIn(t, ns)
	const ports = 5
	s.packetPorts = engine.NewPorts(firstSourcePort, ports, 3)
	open := map[netip.AddrPort][]net.Conn{}
	for _, to := range []netip.AddrPort{one, two} {
		for range ports {
			c, err := s.dial(t.Context(), engine.Dial{Protocol: v1.ProtocolUDP, To: to})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			open[to] = append(open[to], c)
		}
		if c, err := s.dial(t.Context(), engine.Dial{Protocol: v1.ProtocolUDP, To: to}); !errors.Is(err, engine.ErrNoPort) {
			t.Errorf("from a port more than there are: got %v and error %v, want %v", c, err, engine.ErrNoPort)
		}
	}
	for range 2 {
		for to, conns := range open {
			for _, c := range conns {
				asks(t, c, to)
			}
		}
	}
	_ = open[one][0].Close()
	c, err := s.dial(t.Context(), engine.Dial{Protocol: v1.ProtocolUDP, To: one})
	if err != nil {
		t.Fatalf("after a port was given back: %v", err)
	}
	asks(t, c, one)
	_ = c.Close()
}

// Programs of the node that have many ports in a row are in nobody's way: no
// datagram and no connection is lost as long as there is a port.
func TestPortsOfOthersAreLeftOut(t *testing.T) {
	ns := netnstest.NewNS(t)
	const taken, free = 100, 200
	var others []io.Closer
	for i := range taken {
		at := fmt.Sprintf("[::]:%d", int(firstSourcePort)+i)
		p, err := ns.ListenPacket(t.Context(), "udp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		others = append(others, p)
		l, err := ns.Listen(t.Context(), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
	s := socketsIn(t, ns)
	s.packetPorts = engine.NewPorts(firstSourcePort, taken+free, 0)
	d := engine.Dial{Protocol: v1.ProtocolUDP, To: namer(t, ns, "127.0.0.1:8081")}
	for i := range free {
		c, err := s.dial(t.Context(), d)
		if err != nil {
			t.Fatalf("session %d of %d for which there are ports: %v", i+1, free, err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	if c, err := s.dial(t.Context(), d); !errors.Is(err, engine.ErrNoPort) {
		t.Errorf("one session more: got %v and error %v, want %v", c, err, engine.ErrNoPort)
	}
	for i, other := range others {
		_ = other.Close()
		c, err := s.dial(t.Context(), d)
		if err != nil {
			t.Fatalf("when the other programs have given %d ports back: %v", i+1, err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	l, err := ns.Listen(t.Context(), "tcp", "127.0.0.1:8081")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s.ports.Store(uint32(sourcePorts) - 1) // the next one is the first
	for i := range free {
		fd, err := s.begin(engine.Dial{Protocol: v1.ProtocolTCP, To: d.To})
		if err != nil {
			t.Fatalf("connection %d of %d: %v", i+1, free, err)
		}
		_ = unix.Close(fd)
	}
}
