package servertest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
)

// TestFreeAddress listens at many addresses at the same time. No system may give their ports to
// somebody who takes any.
func TestFreeAddress(t *testing.T) {
	// Most systems begin at 49152, as they should.
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
			t.Errorf("got %s, want an address of loopback with a port below %d (error %v)", address, firstOfAny, err)
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() //nolint:errcheck // nobody has used it
	}
}

// TestFreePort takes a port at all addresses.
func TestFreePort(t *testing.T) {
	for range 50 {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", FreePort(t)))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() //nolint:errcheck // nobody has used it
	}
}
