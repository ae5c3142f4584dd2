package neterr

import (
	"errors"
	"runtime"
	"syscall"
)

// Cause is what an error of a socket is about.
type Cause uint8

// The causes.
const (
	// Other errors are about the peer, or about nothing that is known.
	Other Cause = iota
	// Shortage means that this host has run out of something, or denies the operation:
	// memory, descriptors, ports. It says nothing about the peer.
	Shortage
	// NotLocal means that this host does not have the address, or not yet. Where no address
	// was chosen, it means that all ports are in use.
	NotLocal
	// InUse means that another socket has the address and port. Where no port was chosen, it
	// means that all ports are in use.
	InUse
	// TooLarge means that a datagram was larger than the path or the buffer allows.
	TooLarge
	// Full means that a buffer of the socket is full at the moment.
	Full
	// Undelivered means that an earlier datagram did not reach its receiver.
	Undelivered
)

// Numbers of errors of Windows. Programs on other systems never get them.
const (
	portUnreachable syscall.Errno = 1234 // ERROR_PORT_UNREACHABLE
	noResources     syscall.Errno = 1450 // ERROR_NO_SYSTEM_RESOURCES
	workingSetQuota syscall.Errno = 1453 // ERROR_WORKING_SET_QUOTA
	commitmentLimit syscall.Errno = 1455 // ERROR_COMMITMENT_LIMIT
	wsaEACCES       syscall.Errno = 10013
	wsaEMFILE       syscall.Errno = 10024
	wsaEWOULDBLOCK  syscall.Errno = 10035
	wsaEMSGSIZE     syscall.Errno = 10040
	wsaEADDRINUSE   syscall.Errno = 10048
	wsaEADDRNOT     syscall.Errno = 10049 // WSAEADDRNOTAVAIL
	wsaENETRESET    syscall.Errno = 10052 // the time to live has expired
	wsaECONNRESET   syscall.Errno = 10054 // the port is not in use
	wsaENOBUFS      syscall.Errno = 10055
	wsaECONNREFUSED syscall.Errno = 10061
	wsaEPROCLIM     syscall.Errno = 10067
)

// Of returns the cause of an error; [Other] for no error. On Windows, only programs return the names that package
// syscall has on every system.
func Of(err error) Cause {
	errno, _ := errors.AsType[syscall.Errno](err)
	switch errno {
	case syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EPERM, syscall.EACCES,
		noResources, workingSetQuota, commitmentLimit, wsaEACCES, wsaEMFILE, wsaENOBUFS, wsaEPROCLIM:
		return Shortage
	case syscall.EADDRNOTAVAIL, wsaEADDRNOT:
		return NotLocal
	case syscall.EADDRINUSE, wsaEADDRINUSE:
		return InUse
	case syscall.EMSGSIZE, wsaEMSGSIZE:
		return TooLarge
	case syscall.EAGAIN, wsaEWOULDBLOCK:
		return Full
	case syscall.ECONNREFUSED, portUnreachable, wsaENETRESET, wsaECONNRESET, wsaECONNREFUSED:
		return Undelivered
	case 4, 5, 8, 14: // ERROR_TOO_MANY_OPEN_FILES, ERROR_ACCESS_DENIED, ERROR_NOT_ENOUGH_MEMORY, ERROR_OUTOFMEMORY
		if runtime.GOOS == "windows" {
			return Shortage
		}
		return Other
	default:
		return Other
	}
}

// IsDenied reports whether an error says that this host denies the operation. Where a port was chosen,
// that is about the port: Windows returns it for ports that are reserved, or that a socket has for
// itself alone.
func IsDenied(err error) bool { return errors.Is(err, syscall.EACCES) || errors.Is(err, wsaEACCES) }
