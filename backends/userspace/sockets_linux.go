package userspace

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/internal/netns"
)

// sockets makes sockets in the network namespace of the backend.
type sockets struct {
	ns *netns.NS
	// own says that this is the namespace of the whole process, so that any
	// thread will do.
	own bool
	// captured is empty for [TPROXY], which leaves its own connections alone.
	captured captured
	// ports counts the ports from which connections are made; those of
	// datagrams are lent by packetPorts, since the kernel does not see to it
	// that no two sockets have both ends in common.
	ports       atomic.Uint32
	packetPorts *engine.Ports
	// routes is asked for routes.
	routes *asker
}

func newSockets() (*sockets, error) {
	ns, err := netns.Current(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	begin := uint32(os.Getpid()) * 7919 // another process begins elsewhere
	s := &sockets{
		ns: ns, own: everywhere(), packetPorts: engine.NewPorts(firstSourcePort, sourcePorts, begin),
	}
	s.ports.Store(begin)
	if s.routes, err = s.asker(unix.NETLINK_ROUTE); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	s.captured.isLocal = s.isLocal
	return s, nil
}

func (s *sockets) close() error { return errors.Join(s.ns.Close(), s.routes.Close()) }

// everywhere reports whether goroutines run in the namespace of the caller. Who
// is in another one has locked a thread there, so that a new goroutine gets one
// of the others.
func everywhere() bool {
	here, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return false
	}
	same := make(chan bool, 1)
	go func() {
		there, err := os.Stat("/proc/thread-self/ns/net")
		same <- err == nil && os.SameFile(here, there)
	}()
	return <-same
}

// do calls f where sockets come to be in the namespace of the backend.
func (s *sockets) do(f func() error) error {
	if s.own {
		return f()
	}
	return s.ns.Do(f)
}

// transparent lets a socket have addresses of others, and gives it the original
// destination of datagrams.
func transparent(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = makeTransparent(int(fd)) }); e != nil {
		return e
	}
	return os.NewSyscallError("setsockopt", err)
}

func makeTransparent(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return err
	}
	if domain == unix.AF_INET6 {
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
}

// reusable is transparent for sockets that share their port: connections are
// told apart by both ends.
func reusable(network, address string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }); e != nil {
		return e
	}
	if err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	return transparent(network, address, c)
}

// listen opens a door for connections.
// Claim lets it listen at the address.
func (s *sockets) listen(ctx context.Context, at netip.AddrPort, claim func(fd int) error) (*net.TCPListener, error) {
	var l net.Listener
	err := s.do(func() (err error) {
		c := net.ListenConfig{Control: s.prepare(keepAlive, claim), KeepAlive: -1}
		// Endpoints would not get more than one path, and sockets with several
		// neither tell their original destination nor can a program choose them.
		c.SetMultipathTCP(false)
		l, err = c.Listen(ctx, "tcp", at.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil, errors.Join(errors.ErrUnsupported, l.Close())
	}
	return tcp, nil
}

// prepare sets up a socket for a door. Those that accept connections are told to
// notice clients which have vanished; connections inherit it at no cost for each.
func (s *sockets) prepare(options ...func(fd int) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) {
			for _, set := range options {
				err = errors.Join(err, set(int(fd)))
			}
		}); e != nil {
			return e
		}
		return os.NewSyscallError("setsockopt", err)
	}
}

// makeFree lets a socket listen at an address that is none of the host's yet. It
// does no more than that: the kernel delivers packets that connection tracking
// translates to a transparent socket although they belong to another one.
func makeFree(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return err
	}
	if domain == unix.AF_INET6 {
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_FREEBIND, 1)
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_FREEBIND, 1)
}

func keepAlive(fd int) error {
	const seconds, probes = 15, 9
	return errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_KEEPIDLE, seconds),
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_KEEPINTVL, seconds),
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_KEEPCNT, probes),
	)
}
