package addresses

import (
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// A port that the system denies, as Windows does with reserved ones, concerns that port alone; a lack of
// resources does not.
func TestDeniedPort(t *testing.T) {
	t.Parallel()
	k := Key{netip.MustParseAddr("192.0.2.1"), 30080, v1.ProtocolTCP}
	for n, want := range map[syscall.Errno]bool{
		syscall.EACCES: true, 10013: true, syscall.EADDRINUSE: true, syscall.EMFILE: false,
	} {
		err := &net.OpError{Op: "listen", Err: os.NewSyscallError("bind", n)}
		if got := isTaken(explain(k, err)); got != want {
			t.Errorf("error %d: is about the port: got %t, want %t", n, got, want)
		}
	}
}
