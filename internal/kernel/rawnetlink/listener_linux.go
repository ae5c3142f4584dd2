package rawnetlink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrMissed reports that the kernel dropped notifications, because they were not read in time.
var ErrMissed = errors.New("netlink: notifications were lost")

// Listener receives the notifications of multicast groups of a netlink protocol.
type Listener struct {
	file *os.File
	raw  syscall.RawConn
	buf  []byte
}

// listenSize is the requested size in bytes of the receive buffer of a listener: the kernel needs
// about 800 bytes of it for the notification of an address.
const listenSize = 4 << 20

// Listen joins groups in the network namespace of the calling thread.
func Listen(protocol int, groups ...int) (*Listener, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("netlink: listen: %w", os.NewSyscallError("socket", err))
	}
	l := &Listener{file: os.NewFile(uintptr(fd), "netlink notifications"), buf: make([]byte, readSize)}
	l.raw, err = l.file.SyscallConn()
	if err == nil {
		err = growBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, listenSize)
	}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	}
	for _, g := range groups {
		if err == nil {
			err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g))
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("netlink: listen: %w", err), l.file.Close())
	}
	return l, nil
}

// Close ends the listener, and a Receive that is running.
func (l *Listener) Close() error { return l.file.Close() }

// Receive waits for notifications and returns them; the next call overwrites them. It ends
// with the error of ctx when that ends, and with [ErrMissed] if notifications were lost. Calls
// must not overlap.
func (l *Listener) Receive(ctx context.Context) (Messages, error) {
	if err := l.file.SetReadDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.file.SetReadDeadline(time.Now()) }) // fails only if it is closed
	defer stop()
	var n int
	var failed error
	err := l.raw.Read(func(fd uintptr) bool {
		for {
			n, _, failed = unix.Recvfrom(int(fd), l.buf, unix.MSG_DONTWAIT)
			if !errors.Is(failed, unix.EINTR) {
				return !errors.Is(failed, unix.EAGAIN)
			}
		}
	})
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(failed, unix.ENOBUFS):
		return nil, ErrMissed
	case err != nil || failed != nil:
		return nil, fmt.Errorf("netlink: %w", errors.Join(err, failed))
	}
	return l.buf[:n], nil
}
