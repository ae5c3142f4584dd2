package host

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// loopbackIndex is the number of the loopback interface in every network namespace.
const loopbackIndex = 1

// BindToLoopback is for [net.ListenConfig].Control: it lets a socket receive only what processes of
// the node send. With the sysctl route_localnet, which kube-proxy sets, the kernel also accepts
// packets to loopback addresses from other machines.
func BindToLoopback(_, _ string, socket syscall.RawConn) error {
	var bound error
	err := socket.Control(func(fd uintptr) {
		bound = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, loopbackIndex)
	})
	if err != nil {
		return err
	}
	return os.NewSyscallError("setsockopt", bound)
}
