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
)

// Row is a client on one side of a node, and a server with many addresses on the
// other. Both reach the rest of the world through the node, by IPv4.
type Row struct {
	// Client has the address 192.0.2.2, and the node 192.0.2.1 on that side.
	Client *netns.NS
	// Server greets whoever connects to its port 8080 at one of Hosts. The node has
	// 10.0.0.1 on that side.
	Server *netns.NS
	// Hosts are the first of [HostIP], from 2 on.
	Hosts []netip.Addr
}

// NewRow puts a client and a server to the sides of a node, by links that are called
// "clients" and "servers" there.
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
	if err := errors.Join(steps...); err != nil {
		t.Fatal(err)
	}
	listener, err := r.Server.Listen(t.Context(), "tcp", "0.0.0.0:8080")
	if err != nil {
		t.Fatal(err)
	}
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

// tryAgainOnce has the kernel give a connection up when it had no answer to two
// attempts, of which the second comes after a second.
func tryAgainOnce(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_SYNCNT, 1)
	})
	return errors.Join(err, failed)
}

const greeting = "hello\n"

// greet greets everybody until the listener is closed.
func greet(l net.Listener) {
	for {
		c, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			continue // a client that has gone
		}
		_, _ = io.WriteString(c, greeting) // the client notices where that fails
		_ = c.Close()
	}
}

// askPatience is how long it may take to connect, and then to be greeted.
const askPatience = 30 * time.Second

// Ask connects to an address, from a source if that is valid, and waits for the
// greeting. One packet may get lost on the way there, and no two in a row, however
// much time the machine takes. It runs in the namespace of the client.
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
	defer c.Close() //nolint:errcheck // the greeting is all that counts
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

// readAll reads so many bytes past the runtime's poller. For that, a socket is of no
// use of which there was nothing but an error to tell, as is the refusal of a first
// attempt to connect: on a busy machine the second one may have succeeded by then.
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
