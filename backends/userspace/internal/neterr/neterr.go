package neterr

import (
	"errors"
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

// Of returns the cause of an error; [Other] for no error.
func Of(err error) Cause { return causeOf(err, known()) }

// IsDenied reports whether an error says that this host denies the operation. Where a port was chosen,
// that is about the port: Windows returns it for ports that are reserved, or that a socket has for
// itself alone.
func IsDenied(err error) bool {
	const accessDenied = syscall.Errno(10013) // WSAEACCES
	return errors.Is(err, syscall.EACCES) || errors.Is(err, accessDenied)
}

// number is an error of the operating system, and its cause.
type number struct {
	errno syscall.Errno
	cause Cause
}

func causeOf(err error, known []number) Cause {
	if err == nil {
		return Other
	}
	for _, n := range known {
		if errors.Is(err, n.errno) {
			return n.cause
		}
	}
	return Other
}

// byName returns the errors whose names package syscall has on every system. On Windows only
// programs return them, such as hooks.
func byName() []number {
	return []number{
		{syscall.EMFILE, Shortage},
		{syscall.ENFILE, Shortage},
		{syscall.ENOBUFS, Shortage},
		{syscall.ENOMEM, Shortage},
		{syscall.EPERM, Shortage},
		{syscall.EACCES, Shortage},
		{syscall.EADDRNOTAVAIL, NotLocal},
		{syscall.EADDRINUSE, InUse},
		{syscall.EMSGSIZE, TooLarge},
		{syscall.EAGAIN, Full},
		{syscall.ECONNREFUSED, Undelivered},
	}
}

// onWindows returns the errors of Windows. It is here for tests on other systems.
func onWindows() []number {
	return []number{
		{4, Shortage},        // ERROR_TOO_MANY_OPEN_FILES
		{5, Shortage},        // ERROR_ACCESS_DENIED
		{8, Shortage},        // ERROR_NOT_ENOUGH_MEMORY
		{14, Shortage},       // ERROR_OUTOFMEMORY
		{1450, Shortage},     // ERROR_NO_SYSTEM_RESOURCES
		{1453, Shortage},     // ERROR_WORKING_SET_QUOTA
		{1455, Shortage},     // ERROR_COMMITMENT_LIMIT
		{1234, Undelivered},  // ERROR_PORT_UNREACHABLE
		{10013, Shortage},    // WSAEACCES
		{10024, Shortage},    // WSAEMFILE
		{10035, Full},        // WSAEWOULDBLOCK
		{10040, TooLarge},    // WSAEMSGSIZE
		{10048, InUse},       // WSAEADDRINUSE
		{10049, NotLocal},    // WSAEADDRNOTAVAIL
		{10052, Undelivered}, // WSAENETRESET: the time to live has expired
		{10054, Undelivered}, // WSAECONNRESET: the port is not in use
		{10055, Shortage},    // WSAENOBUFS
		{10061, Undelivered}, // WSAECONNREFUSED
		{10067, Shortage},    // WSAEPROCLIM
	}
}
