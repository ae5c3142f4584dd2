package rawnetlink

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// readSize is the size in bytes of one read. The kernel makes the messages of a dump as
// large as the largest read so far, up to 32 KiB.
const readSize = 64 << 10

// Socket is a netlink socket that receives messages only from the kernel. The garbage
// collector closes a socket that is no longer reachable. Calls must not overlap.
type Socket struct {
	fd      int // closedFD after Close: another file may have the number then
	timeout time.Duration
	buf     []byte
	lost    runtime.Cleanup
}

// closedFD makes each system call fail with EBADF.
const closedFD = -1

// Buffers are the requested sizes in bytes of the buffers of a socket, for which the kernel
// reserves no memory. Without privileges they are limited by the sysctls net.core.wmem_max
// and rmem_max.
type Buffers struct{ Send, Receive int }

// OpenSocket opens a socket of a netlink protocol in the network namespace of the calling
// thread. A read that waits longer than the timeout ends with EAGAIN.
func OpenSocket(protocol int, size Buffers, timeout time.Duration) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := setUp(fd, size); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return WrapSocket(fd, timeout)
}

// setUp connects the socket to port 0, so that it receives messages only from the kernel.
func setUp(fd int, size Buffers) error {
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("connect", err)
	}
	for _, opt := range []int{unix.NETLINK_CAP_ACK, unix.NETLINK_EXT_ACK} {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, opt, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return errors.Join(
		growBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, size.Send),
		growBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, size.Receive))
}

// growBuffer requests a buffer beyond the system's limit, which needs CAP_NET_ADMIN in
// the initial user namespace, and without that capability a buffer up to the limit.
func growBuffer(fd, force, plain, size int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size)
	if errors.Is(err, unix.EPERM) {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, size)
	}
	return os.NewSyscallError("setsockopt", err)
}

// WrapSocket makes a Socket from a file descriptor that is ready for use, and closes it if
// that fails.
func WrapSocket(fd int, timeout time.Duration) (*Socket, error) {
	tv := unix.NsecToTimeval(timeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return nil, errors.Join(os.NewSyscallError("setsockopt", err), unix.Close(fd))
	}
	s := &Socket{fd: fd, timeout: timeout, buf: make([]byte, readSize)}
	// A program may drop a backend without closing it.
	s.lost = runtime.AddCleanup(s, func(fd int) { _ = unix.Close(fd) }, fd)
	return s, nil
}

// FD returns the file descriptor, which the Socket still owns.
func (s *Socket) FD() int { return s.fd }

// Port returns the number by which messages of the kernel name the socket.
func (s *Socket) Port() (uint32, error) {
	name, err := unix.Getsockname(s.fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	at, ok := name.(*unix.SockaddrNetlink)
	if !ok {
		return 0, fmt.Errorf("netlink: socket name of type %T", name)
	}
	return at.Pid, nil
}

// Close closes the socket. It fails with [os.ErrClosed] if it was called before. Other calls after
// it fail with EBADF.
func (s *Socket) Close() error {
	if s.fd == closedFD {
		return fmt.Errorf("netlink: close: %w", os.ErrClosed)
	}
	fd := s.fd
	s.fd = closedFD
	s.lost.Stop()
	return os.NewSyscallError("close", unix.Close(fd))
}

// Send sends data with one system call.
func (s *Socket) Send(data []byte) error {
	for {
		_, err := unix.Write(s.fd, data)
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("write", err)
		}
	}
}

// Receive returns the messages of one read; the next read overwrites them. It ignores
// EINTR, because signals interrupt reads from sockets with a timeout.
func (s *Socket) Receive(flags int) (Messages, error) {
	for {
		var n int
		var err error
		if flags == 0 {
			n, err = unix.Read(s.fd, s.buf)
		} else {
			n, _, err = unix.Recvfrom(s.fd, s.buf, flags)
		}
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return nil, fmt.Errorf("no reply from the kernel within %v: %w", s.timeout, err)
		case err != nil:
			return nil, os.NewSyscallError("read", err)
		case n == 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return s.buf[:n], nil
		}
	}
}
