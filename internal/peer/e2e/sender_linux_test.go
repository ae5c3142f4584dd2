package e2e_test

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// sender is a client that sends datagrams all the time from one port, a thousand a second.
// For the kernel all of them are one flow.
type sender struct {
	from, to netip.AddrPort

	mu        sync.Mutex
	server    string    // the pod of the last reply
	repliedAt time.Time // the time of the last reply
}

// startSender sends from a port of a host until the test ends.
func startSender(t *testing.T, host *netns.NS, from, to netip.AddrPort) *sender {
	t.Helper()
	conn, err := host.ListenPacket(t.Context(), "udp", from.String())
	testenv.NoError(t, err)
	s := &sender{from: from, to: to}
	stop := make(chan struct{})
	var tasks sync.WaitGroup
	tasks.Go(func() { s.send(conn, stop) })
	tasks.Go(func() { s.receive(conn) })
	t.Cleanup(func() {
		close(stop)
		_ = conn.Close() // No goroutine uses it any more.
		tasks.Wait()
	})
	return s
}

func (s *sender) String() string { return fmt.Sprintf("the flow from %v to %v", s.from, s.to) }

func (s *sender) send(conn net.PacketConn, stop <-chan struct{}) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	to := net.UDPAddrFromAddrPort(s.to)
	for {
		select {
		case <-tick.C:
			_, _ = conn.WriteTo([]byte("?"), to) // The next datagram repeats a refused one.
		case <-stop:
			return
		}
	}
}

func (s *sender) receive(conn net.PacketConn) {
	text := make([]byte, 256)
	for {
		n, _, err := conn.ReadFrom(text)
		if err != nil {
			return // The sender stops.
		}
		a, err := lab.ParseAnswer(string(text[:n]))
		if err != nil {
			continue // Without an answer, the test fails.
		}
		s.mu.Lock()
		s.server, s.repliedAt = a.Name, time.Now()
		s.mu.Unlock()
	}
}

// served returns the pod of the last reply, and whether that arrived after a time.
func (s *sender) served(since time.Time) (pod string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server, s.repliedAt.After(since)
}
