package kinds

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// presences bounds how many instances of a kind show that they run. A restart has two.
const presences = 64

// socketName returns the name of the n-th abstract socket of a kind.
func socketName(k Kind, n int) *unix.SockaddrUnix {
	return &unix.SockaddrUnix{Name: "@vipkit/" + string(k) + "/" + strconv.Itoa(n)}
}

// openSocket returns a socket in the network namespace of the calling thread.
func openSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("the socket that shows that an instance runs: %w", os.NewSyscallError("socket", err))
	}
	return fd, nil
}

// show gives a socket the first free name of a kind. If all are taken, enough others show that the
// kind runs.
func show(fd int, k Kind) error {
	for n := range presences {
		err := unix.Bind(fd, socketName(k, n))
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("the socket that shows that an instance runs: %w", os.NewSyscallError("bind", err))
		}
	}
	return nil
}

// mayRun reports whether an instance of a kind may run: a socket of one exists, or it cannot be
// found out.
func mayRun(probe int, k Kind) bool {
	for n := range presences {
		if !errors.Is(unix.Connect(probe, socketName(k, n)), unix.ECONNREFUSED) {
			return true
		}
	}
	return false
}
