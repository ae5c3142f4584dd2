package host

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/netns"
)

// Sockets opens sockets in the network namespace of the backend.
type Sockets struct {
	ns *netns.NS
	// own says that this is the namespace of the whole process, so that any thread can
	// open sockets.
	own bool
	// routes sends queries for routes.
	routes *Query
}

// OpenSockets returns Sockets for the network namespace of the calling thread.
func OpenSockets() (*Sockets, error) {
	ns, err := netns.Current(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	s := &Sockets{ns: ns, own: isProcessNamespace()}
	if s.routes, err = s.Query(unix.NETLINK_ROUTE); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return s, nil
}

// Close closes the connections to the kernel. Other sockets stay open.
func (s *Sockets) Close() error { return errors.Join(s.ns.Close(), s.routes.Close()) }

// Netlink returns the netlink handle of the namespace.
func (s *Sockets) Netlink() *netlink.Handle { return s.ns.Netlink() }

// isProcessNamespace reports whether goroutines run in the namespace of the caller. A
// caller in another one has locked a thread there, so that a new goroutine gets another
// thread.
func isProcessNamespace() bool {
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

// Do calls f on a thread in the namespace of the backend, so that new sockets belong to it.
func (s *Sockets) Do(f func() error) error {
	if s.own {
		return f()
	}
	return s.ns.Do(f)
}

// Dial has dial make one connection, by a dialer whose socket belongs to the namespace of the backend. No thread
// waits for the answer of the peer.
func (s *Sockets) Dial(d *net.Dialer, dial func(*net.Dialer) error) error {
	if s.own {
		return dial(d)
	}
	return s.ns.DoUntil(func(leave func()) error {
		inside, made := *d, false
		inside.Control = func(network, address string, c syscall.RawConn) (err error) {
			if made { // Package net makes another socket after some errors of the first one, which would be elsewhere.
				return unix.EADDRNOTAVAIL
			}
			if made = true; d.Control != nil {
				err = d.Control(network, address, c)
			}
			leave()
			return err
		}
		return dial(&inside)
	})
}

// listen opens a listener for connections. Claim sets the socket option that allows binding to
// the address.
func (s *Sockets) listen(ctx context.Context, at netip.AddrPort, claim func(fd int) error) (*net.TCPListener, error) {
	var l net.Listener
	err := s.Do(func() (err error) {
		c := net.ListenConfig{Control: Control(keepAlive, claim), KeepAlive: -1}
		// Endpoints would not see more than one path, and multipath sockets have no
		// SO_ORIGINAL_DST.
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

// Control returns a function for the Control fields of [net.ListenConfig] and [net.Dialer]
// that sets socket options.
func Control(options ...func(fd int) error) func(network, address string, c syscall.RawConn) error {
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

// Transparent allows a socket to use addresses that the host does not have.
func Transparent(fd int) error {
	return setByFamily(fd, unix.IP_TRANSPARENT, unix.IPV6_TRANSPARENT)
}

// FreeBind allows a socket to listen at an address that the host does not have yet.
// Transparent would do that, too, but the kernel delivers packets that connection tracking
// translates to a transparent socket, even if they belong to another one.
func FreeBind(fd int) error { return setByFamily(fd, unix.IP_FREEBIND, unix.IPV6_FREEBIND) }

func setByFamily(fd, four, six int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return err
	}
	if domain == unix.AF_INET6 {
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, six, 1)
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, four, 1)
}

// keepAlive turns on keep-alives, to notice clients that have vanished. Connections inherit the
// options of the listener, which costs no system call for each.
func keepAlive(fd int) error {
	const seconds, probes = 15, 9
	return errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_KEEPIDLE, seconds),
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_KEEPINTVL, seconds),
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_KEEPCNT, probes),
	)
}

// dropAll attaches a filter with which a socket receives nothing.
func dropAll(fd int) error {
	drop := &unix.SockFprog{Len: 1, Filter: &unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, drop)
}
