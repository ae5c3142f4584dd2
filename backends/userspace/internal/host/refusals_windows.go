package host

import (
	"errors"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// reportRefusals has the system report at a UDP socket that its peer refuses datagrams. Package net
// turns that off, since it is in the way of sockets with many peers; this one has a single one,
// and the engine chooses another endpoint then.
func reportRefusals(c net.Conn) error {
	udp, ok := c.(*net.UDPConn)
	if !ok {
		return nil
	}
	raw, err := udp.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		on, written := uint32(1), uint32(0)
		failed = syscall.WSAIoctl(syscall.Handle(fd), syscall.SIO_UDP_CONNRESET, (*byte)(unsafe.Pointer(&on)), uint32(unsafe.Sizeof(on)), nil, 0, &written, nil, 0)
	})
	return errors.Join(err, os.NewSyscallError("wsaioctl", failed))
}
