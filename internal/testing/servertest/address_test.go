package servertest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestFreeAddress listens at many addresses at the same time. Their ports must be below the range of
// ephemeral ports.
func TestFreeAddress(t *testing.T) {
	// The range of most systems begins at 49152, as IANA recommends.
	firstOfAny := uint16(49152)
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		if _, err := fmt.Sscan(string(text), &firstOfAny); err != nil {
			t.Fatal(err)
		}
	}
	for range 50 {
		address := FreeAddress(t)
		at, err := netip.ParseAddrPort(address)
		if err != nil || !at.Addr().IsLoopback() || at.Port() >= firstOfAny {
			t.Errorf("got %s (error %v), want a loopback address with a port below %d", address, err, firstOfAny)
		}
		l, err := net.Listen("tcp", address)
		testenv.NoError(t, err)
		defer l.Close() //nolint:errcheck // no connection was made
	}
}
