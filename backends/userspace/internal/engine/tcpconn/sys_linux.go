package tcpconn

import (
	"encoding/binary"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of this file do not block, since their descriptors are nonblocking. So they
// are raw: what the Go scheduler does in case that a system call blocks costs more than they do.

func pollNow(fd uintptr, events []unix.EpollEvent) (int, error) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, fd, uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
	return result(n, errno)
}

func readNow(fd int, b []byte) (int, error) {
	n, _, errno := syscall.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return result(n, errno)
}

func writeNow(fd int, b []byte) (int, error) {
	const flags = unix.MSG_NOSIGNAL
	n, _, errno := syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), flags, 0, 0)
	return result(n, errno)
}

func acceptNow(fd int) (conn int, peer netip.AddrPort, err error) {
	var sa unix.RawSockaddrInet6 // the longest
	length := uint32(unsafe.Sizeof(sa))
	n, _, errno := syscall.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&length)),
		unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	conn, err = result(n, errno)
	return conn, addrPort(&sa), err
}

func localAddr(fd int) (netip.AddrPort, error) {
	var sa unix.RawSockaddrInet6
	length := uint32(unsafe.Sizeof(sa))
	_, _, errno := syscall.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&length)))
	_, err := result(0, errno)
	return addrPort(&sa), err
}

// connectNow begins to connect a socket; called again, it returns the state of the attempt.
func connectNow(fd int, to netip.AddrPort) error {
	sa, length := rawAddr(to)
	_, _, errno := syscall.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), length)
	_, err := result(0, errno)
	return err
}

func bindNow(fd int, from netip.AddrPort) error {
	sa, length := rawAddr(from)
	_, _, errno := syscall.RawSyscall(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(&sa)), length)
	_, err := result(0, errno)
	return err
}

// rawAddr returns an address as the kernel reads it.
func rawAddr(a netip.AddrPort) (sa unix.RawSockaddrInet6, length uintptr) {
	length = unix.SizeofSockaddrInet6
	if a.Addr().Is4() {
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(&sa))
		four.Family, four.Addr = unix.AF_INET, a.Addr().As4()
		length = unix.SizeofSockaddrInet4
	} else {
		sa.Family, sa.Addr = unix.AF_INET6, a.Addr().As16()
	}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&sa.Port))[:], a.Port())
	return sa, length
}

// setNow sets an option, which consists of one number or, as SO_LINGER, of two.
func setNow(fd, level, name int, value ...int32) error {
	_, _, errno := syscall.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(unsafe.SliceData(value))), unsafe.Sizeof(int32(0))*uintptr(len(value)), 0)
	_, err := result(0, errno)
	return err
}

func socketNow(family int) (int, error) {
	fd, _, errno := syscall.RawSyscall(unix.SYS_SOCKET, uintptr(family), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	return result(fd, errno)
}

func shutdownNow(fd int) error {
	_, _, errno := syscall.RawSyscall(unix.SYS_SHUTDOWN, uintptr(fd), unix.SHUT_WR, 0)
	_, err := result(0, errno)
	return err
}

// spliceNow moves the data that is available between a pipe and a socket.
func spliceNow(from, to, most int) (int, error) {
	const flags = unix.SPLICE_F_NONBLOCK | unix.SPLICE_F_MOVE
	n, _, errno := syscall.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(most), flags)
	return result(n, errno)
}

func closeNow(fd int) error {
	_, _, errno := syscall.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
	_, err := result(0, errno)
	return err
}

func result(n uintptr, errno syscall.Errno) (int, error) {
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// addrPort reads an address that the kernel has written.
func addrPort(sa *unix.RawSockaddrInet6) netip.AddrPort {
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&sa.Port))[:])
	if sa.Family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(sa)).Addr), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), port)
}

// call adds the name of the system call to its error.
func call(name string, err error) error {
	if err == nil {
		return nil
	}
	return os.NewSyscallError(name, err)
}
