package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// sctpPatience is how long an association may take to be made.
const sctpPatience = 20 * time.Second

// ListenSCTP makes a listener of SCTP in the namespace, which package net handles as one of TCP.
// The address is specific: a listener at all addresses offers its clients all of them,
// and they use them beside the one that they have connected to.
func (n *NS) ListenSCTP(at netip.AddrPort) (net.Listener, error) {
	return within(n, func() (listener net.Listener, err error) {
		err = withSCTP(at, func(file *os.File, a unix.Sockaddr) error {
			fd := int(file.Fd())
			err := unix.Bind(fd, a)
			if err == nil {
				err = unix.Listen(fd, unix.SOMAXCONN)
			}
			if err == nil {
				listener, err = net.FileListener(file) // It has a copy of the descriptor.
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("netns: listening at %v by SCTP: %w", at, err)
		}
		return listener, nil
	})
}

// DialSCTP connects from the namespace, within the time that is left of ctx and at most 20
// seconds. While it does, it occupies a thread.
func (n *NS) DialSCTP(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	patience := sctpPatience
	if end, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(end))
	}
	return within(n, func() (conn net.Conn, err error) {
		err = withSCTP(to, func(file *os.File, a unix.Sockaddr) error {
			limit := unix.NsecToTimeval(max(patience, time.Millisecond).Nanoseconds())
			err := unix.SetsockoptTimeval(int(file.Fd()), unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit)
			if err == nil {
				err = unix.Connect(int(file.Fd()), a)
			}
			if err == nil {
				conn, err = net.FileConn(file)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("netns: connecting to %v by SCTP: %w", to, err)
		}
		return conn, nil
	})
}

// withSCTP calls use with a socket, which it closes, and with an address for it.
func withSCTP(at netip.AddrPort, use func(*os.File, unix.Sockaddr) error) error {
	family, address := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()})
	if at.Addr().Is4() {
		family, address = unix.AF_INET, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), "sctp")
	return errors.Join(use(file, address), file.Close())
}
