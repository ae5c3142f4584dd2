package userspace_test

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// echo answers datagrams in the pod with themselves.
func (n network) echo(t *testing.T, at string) {
	t.Helper()
	c, err := n.pod.ListenPacket(t.Context(), "udp", at)
	testenv.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 64<<10)
		for {
			size, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(buf[:size], from)
		}
	})
	t.Cleanup(func() {
		_ = c.Close()
		wg.Wait()
	})
}

// addIPv6 adds IPv6 addresses and routes to the client, the node and the pod.
func (n network) addIPv6(t *testing.T) {
	t.Helper()
	prefix := netip.MustParsePrefix
	for _, err := range []error{
		n.node.AddAddress("clients", prefix("fd00:1::1/64")), n.node.AddAddress("pods", prefix("fd00:2::1/64")),
		n.client.AddAddress("eth0", prefix("fd00:1::10/64")), n.pod.AddAddress("eth0", prefix("fd00:2::10/64")),
		n.client.AddRoute(netns.Route{To: prefix("::/0"), Link: "eth0", Via: netip.MustParseAddr("fd00:1::1")}),
		n.pod.AddRoute(netns.Route{To: prefix("::/0"), Link: "eth0", Via: netip.MustParseAddr("fd00:2::1")}),
	} {
		testenv.NoError(t, err)
	}
}

// Datagrams of any size are echoed unchanged, from the frontend's address: the client's socket
// is connected, and receives none from other addresses.
func TestDatagramsOfAllSizes(t *testing.T) {
	t.Parallel()
	forCaptures(t, testDatagrams)
}

func testDatagrams(t *testing.T, c userspace.Capture) {
	t.Helper()
	n := newNetwork(t)
	n.addIPv6(t)
	var ports []*proxy.ServicePort
	at := map[v1.IPFamily]string{v1.IPv4Protocol: "10.96.0.1:53", v1.IPv6Protocol: "[fd00:96::1]:53"}
	for family, server := range map[v1.IPFamily]string{v1.IPv4Protocol: podServer, v1.IPv6Protocol: "[fd00:2::10]:8080"} {
		n.echo(t, server)
		ports = append(ports, snapshots.Port("dns/UDP", at[family], server))
	}
	apply(t, n.start(t, userspace.Options{Capture: c}), proxy.NewSnapshot(&proxy.Node{}, ports...))
	for _, to := range at {
		for _, size := range []int{0, 1, 7, 1400, 1473, 9001, 65_000} {
			// A new socket for each size: a late answer must not be mistaken for the
			// next one.
			c, err := n.client.Dial(t.Context(), "udp", to)
			testenv.NoError(t, err)
			want := bytes.Repeat([]byte{byte(size), 0xff, 0x80}, size/3+1)[:size]
			if got := exchange(t.Context(), c, want); !bytes.Equal(got, want) {
				t.Errorf("at %s, %d bytes sent: got %d bytes back, want the same", to, size, len(got))
			}
			_ = c.Close()
		}
	}
}

// exchange sends a datagram, again if it is lost, and returns the answer.
func exchange(ctx context.Context, c net.Conn, datagram []byte) []byte {
	buf := make([]byte, 64<<10)
	for range 10 {
		if ctx.Err() != nil {
			return nil
		}
		if _, err := c.Write(datagram); err != nil {
			continue
		}
		// With a shorter deadline, a late answer would be mistaken for the next one.
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, err := c.Read(buf); err == nil {
			return buf[:n]
		}
	}
	return nil
}
