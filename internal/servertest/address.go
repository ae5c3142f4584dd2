package servertest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"testing"
)

// FreePort gives a TCP port that nobody listens at, at any address of the machine. Systems give
// none of these to whoever takes any port, so no connection has it by chance a moment later.
func FreePort(t testing.TB) uint16 {
	t.Helper()
	const first, count = 10_000, 20_000
	var err error
	for range 100 {
		port := first + rand.IntN(count)
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			return uint16(port)
		}
	}
	t.Fatalf("no port is free: %v", err)
	return 0
}

// FreeAddress gives a loopback address with such a port. On Linux nobody else is likely to use the
// address at all, so that two tests do not get the same port.
func FreeAddress(t testing.TB) string {
	t.Helper()
	host := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if runtime.GOOS == "linux" {
		host = netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
	}
	return netip.AddrPortFrom(host, FreePort(t)).String()
}
