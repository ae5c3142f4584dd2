package servertest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// FreePort returns a TCP port that no program listens at, at any address of the machine. It is below
// the range of ephemeral ports, so that no connection gets it by chance a moment later.
func FreePort(t testing.TB) uint16 {
	t.Helper()
	const first, count = 10_000, 20_000
	var err error
	for range 100 {
		port := first + rand.IntN(count)
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			testenv.NoError(t, l.Close())
			return uint16(port)
		}
	}
	t.Fatalf("finding a free port: %v", err)
	return 0
}

// FreeAddress returns a loopback address with a free port. On Linux the address is random, so that
// two tests are unlikely to get the same address and port.
func FreeAddress(t testing.TB) string {
	t.Helper()
	host := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if runtime.GOOS == "linux" {
		host = netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
	}
	return netip.AddrPortFrom(host, FreePort(t)).String()
}
