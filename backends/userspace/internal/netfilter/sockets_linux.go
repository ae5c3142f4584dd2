package netfilter

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// control returns a function for the Control fields of [net.ListenConfig] and [net.Dialer]
// that sets socket options.
func control(options ...func(fd int) error) func(network, address string, c syscall.RawConn) error {
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

// transparent allows a socket to use addresses that the host does not have.
func transparent(fd int) error {
	return setByFamily(fd, unix.IP_TRANSPARENT, unix.IPV6_TRANSPARENT)
}

// freeBind allows a socket to listen at an address that the host does not have yet.
// transparent would do that, too, but the kernel delivers packets that connection tracking
// translates to a transparent socket, even if they belong to another one.
func freeBind(fd int) error { return setByFamily(fd, unix.IP_FREEBIND, unix.IPV6_FREEBIND) }

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
