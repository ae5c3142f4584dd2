package netfilter

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// The sockets that all clients share have large receive buffers, as far as the machine allows.
func TestRoomForDatagrams(t *testing.T) {
	t.Parallel()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	testenv.NoError(t, err)
	defer unix.Close(fd) //nolint:errcheck // the test is over
	testenv.NoError(t, makeRoom(fd))
	text, err := os.ReadFile("/proc/sys/net/core/rmem_max")
	testenv.NoError(t, err)
	limit := 0
	if _, err := fmt.Sscan(string(text), &limit); err != nil {
		t.Fatal(err)
	}
	// The kernel doubles the value, for its own overhead.
	if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil || got < 2*min(limit, 4<<20) {
		t.Errorf("receive buffer: got %d bytes and error %v, want at least %d", got, err, 2*min(limit, 4<<20))
	}
}
