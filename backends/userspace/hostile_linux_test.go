package userspace_test

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// countingEcho answers datagrams to the pod with themselves, and counts them.
func (n network) countingEcho(t *testing.T, at string) *atomic.Int64 {
	t.Helper()
	var count atomic.Int64
	n.receive(t, at, func(c net.PacketConn, datagram []byte, from net.Addr) {
		count.Add(1)
		_, _ = c.WriteTo(datagram, from)
	})
	return &count
}

// If a client forges the address of a Service as its source, two Services that answer any
// datagram do not answer each other for ever: whether the client is on the node or elsewhere.
func TestServicesDoNotAnswerEachOther(t *testing.T) {
	t.Parallel()
	const a, b = "10.96.0.1:9000", "10.96.0.2:9000"
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		for _, host := range []string{"node", "client"} {
			for _, to := range []string{a, b} {
				t.Run(host+" to "+to, func(t *testing.T) {
					t.Parallel()
					n := newNetwork(t).from(host)
					one, two := n.countingEcho(t, podSocket), n.countingEcho(t, podAddr+":9001")
					apply(t, n.start(t, userspace.Options{Capture: c}), services(dns(a, podSocket), dns(b, podAddr+":9001")))
					conn, err := n.dial(t, "udp", netip.MustParseAddrPort(a), to, transparent)
					testenv.NoError(t, err)
					send(t, conn, "loop")
					_ = conn.Close()
					// An endless exchange makes thousands of datagrams by then.
					for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
						if got := one.Load() + two.Load(); got > 4 {
							t.Fatalf("datagrams after one of the client: got %d, want 4 at most", got)
						}
					}
				})
			}
		}
	})
}
