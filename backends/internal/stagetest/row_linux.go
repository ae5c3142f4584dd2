package stagetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// Row is a client on one side of a node, and a server with many addresses on the
// other. Both have their default route through the node, for IPv4.
type Row struct {
	// Client has the address 192.0.2.2, and the node 192.0.2.1 on that side.
	Client *netns.NS
	// Server sends a greeting to every client that connects to port 8080 of one of Hosts.
	// The node has 10.0.0.1 on that side.
	Server *netns.NS
	// Hosts are addresses of [HostIP], from 2 on.
	Hosts []netip.Addr
}

// NewRow connects a client and a server with a node, by links that are named "clients" and
// "servers" on the node.
func NewRow(t testing.TB, node *netns.NS, hosts int) *Row {
	t.Helper()
	r := &Row{Client: netnstest.NewNS(t), Server: netnstest.NewNS(t)}
	everywhere, left, right := netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.0.0.1")
	steps := []error{
		netns.Link(netns.End{NS: r.Client, Name: "up"}, netns.End{NS: node, Name: "clients"}),
		netns.Link(netns.End{NS: r.Server, Name: "up"}, netns.End{NS: node, Name: "servers"}),
		node.AddAddress("clients", netip.PrefixFrom(left, 24)),
		node.AddAddress("servers", netip.PrefixFrom(right, 16)),
		r.Client.AddAddress("up", netip.PrefixFrom(left.Next(), 24)),
		r.Client.AddRoute(netns.Route{To: everywhere, Link: "up", Via: left}),
		r.Client.Sysctl("net/ipv4/ip_local_port_range", "1024 65535"),
		r.Client.Sysctl("net/ipv4/tcp_tw_reuse", "1"),
		node.Forward(),
	}
	for i := range hosts {
		r.Hosts = append(r.Hosts, HostIP(v1.IPv4Protocol, 2+i))
		steps = append(steps, r.Server.AddAddress("up", netip.PrefixFrom(r.Hosts[i], 16)))
	}
	steps = append(steps, r.Server.AddRoute(netns.Route{To: everywhere, Link: "up", Via: right}))
	testenv.NoError(t, errors.Join(steps...))
	listener, err := r.Server.Listen(t.Context(), "tcp", "0.0.0.0:8080")
	testenv.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { greet(listener) })
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		serving.Wait()
	})
	return r
}

// tryAgainOnce makes the kernel end the attempt to connect after two packets without
// answer, the second one after a second.
func tryAgainOnce(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_SYNCNT, 1)
	})
	return errors.Join(err, failed)
}

const greeting = "hello\n"

// greet sends the greeting to every client until the listener is closed.
func greet(l net.Listener) {
	for {
		c, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			continue // the client has closed the connection
		}
		_, _ = io.WriteString(c, greeting) // the client notices if that fails
		_ = c.Close()
	}
}

// askPatience is how long connecting and receiving the greeting may take.
const askPatience = 30 * time.Second

// Ask connects to an address, from a source if that is valid, and waits for the
// greeting. It survives the loss of one packet to the server, but not of two in a row, however
// slow the machine is. It runs in the namespace of the client.
func Ask(ctx context.Context, source netip.Addr, address string) error {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	d := net.Dialer{Control: tryAgainOnce}
	if source.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // only the greeting matters
	if tcp, ok := c.(*net.TCPConn); ok {
		err = tcp.SetLinger(0) // no TIME_WAIT, which uses up ports
	}
	if err != nil {
		return err
	}
	got, err := readAll(c, len(greeting))
	if err == nil && got != greeting {
		err = fmt.Errorf("greeting: got %q, want %q", got, greeting)
	}
	return err
}

// readAll reads size bytes without the runtime's poller. The poller fails reads of a socket
// for which it saw an error, such as that of a first attempt to connect: on a busy machine
// the second attempt may have succeeded by then.
func readAll(c net.Conn, size int) (string, error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return "", fmt.Errorf("the connection is a %T", c)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return "", err
	}
	got, n, failed := make([]byte, size), 0, error(nil)
	err = raw.Control(func(fd uintptr) { n, failed = readBlocking(int(fd), got) })
	return string(got[:n]), errors.Join(err, failed)
}

func readBlocking(fd int, all []byte) (n int, err error) {
	patience := syscall.NsecToTimeval(askPatience.Nanoseconds())
	err = errors.Join(syscall.SetNonblock(fd, false), syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &patience))
	for err == nil && n < len(all) {
		var more int
		more, err = syscall.Read(fd, all[n:])
		switch {
		case errors.Is(err, syscall.EINTR):
			err = nil
		case err == nil && more == 0:
			err = io.ErrUnexpectedEOF
		case err == nil:
			n += more
		}
	}
	return n, err
}
