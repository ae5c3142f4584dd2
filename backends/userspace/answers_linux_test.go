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
	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/proxy"
)

// A client whose own address is that of a Service is served like any other: what it
// is answered is not looked up, neither its address nor its port.
func TestClientsMayHaveAddressesOfServices(t *testing.T) {
	const addr, port = "10.96.0.3", "40000"
	for _, capture := range []userspace.Capture{userspace.TPROXY, userspace.Redirect} {
		for name, of := range map[string]string{"its port is none of the Service": addr + ":80", "its port is the Service's": addr + ":" + port} {
			t.Run(capture.String()+"/"+name, func(t *testing.T) {
				n := newNetwork(t)
				to := netip.MustParsePrefix(addr + "/32")
				if err := n.client.AddAddress("eth0", to); err != nil {
					t.Fatal(err)
				}
				if err := n.node.AddRoute(netns.Route{To: to, Link: "clients", Via: netip.MustParseAddr(clientAddr)}); err != nil {
					t.Fatal(err)
				}
				n.serve(t, podServer)
				n.echo(t, podServer)
				const frontend = "10.96.0.1:53"
				apply(t, n.start(t, userspace.Options{Capture: capture}), both(
					ofKind(both(snapshot(one), snapshot(of)), proxy.ClusterIP), both(names(frontend), names(of))))
				if got, err := n.greetingFrom(t, netip.MustParseAddrPort(addr+":"+port), one); err != nil || got == "" {
					t.Errorf("a connection: got %q and error %v, want the server", got, err)
				}
				n.asksFrom(t, addr+":"+port, frontend)
			})
		}
	}
}

// asksFrom sends a datagram from an address of the client's, and wants it back from
// where it was sent.
func (n network) asksFrom(t *testing.T, from, to string) {
	t.Helper()
	c, err := n.client.ListenPacket(t.Context(), "udp", from)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // the test is over
	if _, err := c.WriteTo([]byte("?"), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to))); err != nil {
		t.Fatal(err)
	}
	if got := hears(t, c, "?"); got.String() != to {
		t.Errorf("asked at %s: the answer comes from %v", to, got)
	}
}

// lostNothing reports packets that the kernel had to send again. How long it took to
// connect would not tell them from a busy machine.
func lostNothing(c net.Conn) error {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return fmt.Errorf("the connection is a %T", c)
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

// wantSilence wants nobody to answer, and no refusal either.
func (n network) wantSilence(t *testing.T, to string) {
	t.Helper()
	if server, _, c, err := n.askFor(t, to, 900*time.Millisecond); c != nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("connection to %s: got %q and error %v, want silence", to, server, err)
	}
}
