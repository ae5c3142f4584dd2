//go:build measure

package engine

import (
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// TestMeasureMemory measures the memory of a silent connection.
func TestMeasureMemory(t *testing.T) {
	to := named(t)
	measureSilent(t, to) // allocates what is allocated only once
	memory, goroutines := measureSilent(t, to)
	w := newFixture(t, Config{}, v1.ProtocolTCP)
	at := w.listen(t)
	w.serveAt(at, to)
	_, c := serverNameAt(t, at)
	shut(c)
	through, more := measureSilent(t, at) // client and server are in this process too
	eventually(t, "no connection is left", func() bool { return w.CountConnections().Connections == 0 })
	t.Logf("a silent connection: %d bytes of heap and stacks, %d goroutines", through-memory, more-goroutines)
}

// measureSilent returns the memory and the goroutines per silent connection, of many.
func measureSilent(t *testing.T, to netip.AddrPort) (bytes, goroutines int) {
	t.Helper()
	const n = 3000
	resident := func() int {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapInuse + m.StackInuse)
	}
	before, running := resident(), runtime.NumGoroutine()
	var open []*net.TCPConn
	for range n {
		_, c := serverNameAt(t, to)
		open = append(open, c)
	}
	time.Sleep(400 * time.Millisecond) // until nothing holds a pipe
	bytes, goroutines = (resident()-before)/n, (runtime.NumGoroutine()-running+n/2)/n
	for _, c := range open {
		shut(c)
	}
	eventually(t, "all are closed", func() bool { return runtime.NumGoroutine() < running+n/10 })
	return bytes, goroutines
}
