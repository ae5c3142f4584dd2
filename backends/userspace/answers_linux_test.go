package userspace_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// A client whose own address is that of a Service is served like any other: answers to it are not
// captured, whether or not its port is the Service's.
func TestClientsMayHaveAddressesOfServices(t *testing.T) {
	t.Parallel()
	const addr, port = "10.96.0.3", "40000"
	for _, capture := range []userspace.Capture{userspace.TPROXY, userspace.Redirect} {
		for name, of := range map[string]string{"another port": addr + ":80", "the Service's port": addr + ":" + port} {
			t.Run(capture.String()+"/"+name, func(t *testing.T) {
				t.Parallel()
				n := newNetwork(t)
				to := netip.MustParsePrefix(addr + "/32")
				testenv.NoError(t, n.client.AddAddress("eth0", to))
				testenv.NoError(t, n.node.AddRoute(netns.Route{To: to, Link: "clients", Via: netip.MustParseAddr(clientAddr)}))
				n.serve(t, podServer)
				n.echo(t, podServer)
				const frontend = "10.96.0.1:53"
				apply(t, n.start(t, userspace.Options{Capture: capture}), both(
					ofKind(both(snapshot(one), snapshot(of)), proxy.ClusterIP), both(names(frontend), names(of))))
				if got, err := n.greetingFrom(t, netip.MustParseAddrPort(addr+":"+port), one); err != nil || got == "" {
					t.Errorf("a connection: got %q and error %v, want an answer of the server", got, err)
				}
				n.wantEcho(t, addr+":"+port, frontend)
			})
		}
	}
}

// wantEcho sends a datagram from an address of the client, and checks that it is echoed from the
// address that it was sent to.
func (n network) wantEcho(t *testing.T, from, to string) {
	t.Helper()
	c, err := n.client.ListenPacket(t.Context(), "udp", from)
	testenv.NoError(t, err)
	defer c.Close() //nolint:errcheck // the test is over
	if _, err := c.WriteTo([]byte("?"), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to))); err != nil {
		t.Fatal(err)
	}
	if got := wantDatagram(t, c, "?"); got.String() != to {
		t.Errorf("datagram to %s: got an answer from %v, want the same address", to, got)
	}
}

// checkRetransmits returns an error if the kernel had to send packets again. The time to connect
// would not distinguish lost packets from a busy machine.
func checkRetransmits(c net.Conn) error {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return fmt.Errorf("got a %T, want a TCP connection", c)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var info *unix.TCPInfo
	var failed error
	err = raw.Control(func(fd uintptr) { info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	if info.Total_retrans > 0 {
		return fmt.Errorf("%d packets were sent again", info.Total_retrans)
	}
	return nil
}

// wantSilence checks that a connection gets neither an answer nor a refusal.
func (n network) wantSilence(t *testing.T, to string) {
	t.Helper()
	if server, _, c, err := n.askFor(t, to, 900*time.Millisecond); c != nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("connection to %s: got %q and error %v, want silence", to, server, err)
	}
}
