package neterr

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
)

// wrapped returns an error as package net returns it.
func wrapped(n syscall.Errno) error {
	return fmt.Errorf("dialing: %w", &net.OpError{Op: "dial", Err: os.NewSyscallError("connectex", n)})
}

// The numbers of Windows mean what they mean there; other systems do not have them.
func TestWindows(t *testing.T) {
	t.Parallel()
	for n, want := range map[syscall.Errno]Cause{
		10024: Shortage,    // WSAEMFILE
		10055: Shortage,    // WSAENOBUFS
		10013: Shortage,    // WSAEACCES
		10048: InUse,       // WSAEADDRINUSE
		1450:  Shortage,    // ERROR_NO_SYSTEM_RESOURCES
		10049: NotLocal,    // WSAEADDRNOTAVAIL
		10040: TooLarge,    // WSAEMSGSIZE
		10035: Full,        // WSAEWOULDBLOCK
		10054: Undelivered, // WSAECONNRESET
		10061: Undelivered, // WSAECONNREFUSED
		10060: Other,       // WSAETIMEDOUT
		10065: Other,       // WSAEHOSTUNREACH
	} {
		if got := Of(wrapped(n)); got != want {
			t.Errorf("error %d: got cause %d, want %d", n, got, want)
		}
	}
}

// Errors that are not of the operating system have no known cause.
func TestOthers(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, net.ErrClosed, errors.New("some error"), os.ErrDeadlineExceeded, wrapped(10060)} {
		if got := Of(err); got != Other {
			t.Errorf("%v: got cause %d, want %d", err, got, Other)
		}
	}
}

// An address that this host does not have is recognized by the error of the system itself.
func TestAddressOfAnotherHost(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "192.0.2.1:0") // reserved for documentation (RFC 5737)
	if err == nil {
		_ = l.Close()
		t.Fatal("listening at 192.0.2.1: got no error, want one")
	}
	if got := Of(err); got != NotLocal {
		t.Errorf("%v: got cause %d, want %d", err, got, NotLocal)
	}
}
