package stagetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
)

// Row is a client on one side of a node, and a server with many addresses on the
// other. Both have their default route through the node, for IPv4.
type Row struct {
	// Client has the address 192.0.2.2, and the node 192.0.2.1 on that side.
	Client *netns.NS
	// Server answers at port 8080 of Hosts. The node has 10.0.0.1 on that side.
	Server *netns.NS
	// Hosts are addresses of [HostIP], from 2 on.
	Hosts []netip.Addr
}

// NewRow connects a client and a server with the node of a [Stage], by links that are named "clients" and
// "servers" on the node.
func NewRow(l *lab.Lab, hosts int) *Row {
	r := &Row{}
	var addrs strings.Builder
	for i := range hosts {
		r.Hosts = append(r.Hosts, HostIP(v1.IPv4Protocol, 2+i))
		fmt.Fprintf(&addrs, "%v/16 ", r.Hosts[i])
	}
	r.Client = l.Add(lab.Host{
		Name: "clients", Uplink: nodeName, Addrs: "192.0.2.2/24", Gateway: "192.0.2.1/24",
		Sysctls: map[string]string{"net/ipv4/ip_local_port_range": "1024 65535", "net/ipv4/tcp_tw_reuse": "1"},
	})
	r.Server = l.Add(lab.Host{Name: "servers", Uplink: nodeName, Addrs: addrs.String(), Gateway: "10.0.0.1/16", Serve: []uint16{8080}})
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

// askPatience is how long connecting and receiving the greeting may take.
const askPatience = 30 * time.Second

// Ask connects to an address, from a source if that is valid, and waits for the
// greeting of a server. It survives the loss of one packet to the server, but not of two in a row, however
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
	got, err := readLine(c)
	if err == nil {
		_, err = lab.ParseAnswer(got)
	}
	return err
}

// readLine reads a line without the runtime's poller. The poller fails reads of a socket
// for which it saw an error, such as that of a first attempt to connect: on a busy machine
// the second attempt may have succeeded by then.
func readLine(c net.Conn) (string, error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return "", fmt.Errorf("the connection is a %T", c)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return "", err
	}
	var got string
	var failed error
	err = raw.Control(func(fd uintptr) { got, failed = readBlocking(int(fd)) })
	return got, errors.Join(err, failed)
}

func readBlocking(fd int) (line string, err error) {
	patience := syscall.NsecToTimeval(askPatience.Nanoseconds())
	err = errors.Join(syscall.SetNonblock(fd, false), syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &patience))
	for some := make([]byte, 256); err == nil && !strings.HasSuffix(line, "\n"); {
		var n int
		n, err = syscall.Read(fd, some)
		switch {
		case errors.Is(err, syscall.EINTR):
			err = nil
		case err == nil && n == 0:
			err = io.ErrUnexpectedEOF
		case err == nil:
			line += string(some[:n])
		}
	}
	return line, err
}
