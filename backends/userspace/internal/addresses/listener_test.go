package addresses

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
)

// A port that the system denies, as Windows does with reserved ones, is no lack of resources: it
// concerns that port alone.
func TestDeniedPort(t *testing.T) {
	t.Parallel()
	k := Key{netip.MustParseAddr("192.0.2.1"), 30080, v1.ProtocolTCP}
	for n, want := range map[syscall.Errno]struct{ exhausted, taken bool }{
		syscall.EACCES: {false, true}, 10013: {false, true}, syscall.EADDRINUSE: {false, true}, syscall.EMFILE: {true, false},
	} {
		err := &net.OpError{Op: "listen", Err: os.NewSyscallError("bind", n)}
		if got := errors.Is(explain(k, err), backends.ErrExhausted); got != want.exhausted {
			t.Errorf("error %d: lack of resources: got %t, want %t", n, got, want.exhausted)
		}
		if got := isTaken(err); got != want.taken {
			t.Errorf("error %d: is about the port: got %t, want %t", n, got, want.taken)
		}
	}
}
