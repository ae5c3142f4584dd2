//go:build measure

package engine

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// sink is a server that takes what it gets, or answers a byte with a byte.
func sink(t testing.TB) netip.AddrPort {
	t.Helper()
	return server(t, func(c net.Conn) {
		var first [1]byte
		if _, err := io.ReadFull(c, first[:]); err != nil {
			return
		}
		if first[0] == '?' {
			_, _ = c.Write(first[:])
			return
		}
		buf := make([]byte, 1<<20)
		for {
			if _, err := c.Read(buf); err != nil {
				_, _ = c.Write(first[:])
				return
			}
		}
	})
}

// haproxy runs the program of that name in TCP mode in front of a server.
func haproxy(t *testing.T, to netip.AddrPort, options string) (at netip.AddrPort, pid int) {
	t.Helper()
	path, err := exec.LookPath("haproxy")
	if err != nil {
		t.Fatal("haproxy is not installed, and there is nothing to compare with: apt-get install haproxy")
	}
	at = refusing(t)
	config := filepath.Join(t.TempDir(), "haproxy.cfg")
	text := fmt.Sprintf("global\n maxconn 4000\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 1h\n timeout server 1h\n%s\nlisten l\n bind %v\n server s %v\n", options, at, to)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return at, run(t, exec.CommandContext(t.Context(), path, "-f", config, "-db"), at)
}

// apart runs the engine in a process of its own in front of a server.
func apart(t *testing.T, to netip.AddrPort) (at netip.AddrPort, pid int) {
	t.Helper()
	at = refusing(t)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%v %v", engineVariable, at, to))
	if _, err := cmd.StdinPipe(); err != nil { // it ends with the input
		t.Fatal(err)
	}
	return at, run(t, cmd, at)
}

// run starts a program that listens, and ends it with the test.
func run(t *testing.T, cmd *exec.Cmd, at netip.AddrPort) (pid int) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	eventually(t, cmd.Path+" listens", func() bool {
		c, err := net.Dial("tcp", at.String())
		if err == nil {
			shut(c)
		}
		return err == nil
	})
	return cmd.Process.Pid
}

// bulk sends as much as goes through in a while, and gives bytes a second.
func bulk(t *testing.T, to netip.AddrPort) float64 {
	t.Helper()
	const streams, long = 2, 500 * time.Millisecond
	var total atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range streams {
		wg.Go(func() {
			c, err := net.Dial("tcp", to.String())
			if err != nil {
				t.Error(err)
				return
			}
			defer shut(c)
			buf := make([]byte, 1<<20)
			for time.Since(start) < long {
				n, err := c.Write(buf)
				if err != nil {
					t.Error(err)
					return
				}
				total.Add(int64(n))
			}
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.CloseWrite()
			}
			_, _ = io.ReadFull(c, buf[:1]) // all has arrived
		})
	}
	wg.Wait()
	return float64(total.Load()) / time.Since(start).Seconds()
}

// connections opens and closes connections for a while, each with a question and
// an answer, and gives their number a second.
func connections(t *testing.T, to netip.AddrPort) float64 {
	t.Helper()
	const clients, long = 16, 500 * time.Millisecond
	var total atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range clients {
		wg.Go(func() {
			for time.Since(start) < long {
				if _, err := askOnce(to); err != nil {
					t.Error(err)
					return
				}
				total.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(total.Load()) / time.Since(start).Seconds()
}

func askOnce(to netip.AddrPort) (time.Duration, error) {
	start := time.Now()
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(to))
	if err != nil {
		return 0, err
	}
	defer shut(c)
	_ = c.SetLinger(0) // no port waits for the next measurement
	var b [1]byte
	if _, err := c.Write([]byte("?")); err != nil {
		return 0, err
	}
	_, err = io.ReadFull(c, b[:])
	return time.Since(start), err
}

// way is a path that is measured, with the process that carries it.
type way struct {
	name             string
	at               netip.AddrPort
	pid              int
	rates, conns     []float64
	sent, made       float64
	sentCPU, madeCPU time.Duration
}

// busy gives the processor time that a process has taken.
func busy(t *testing.T, pid int) time.Duration {
	t.Helper()
	if pid == 0 {
		return 0
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

func (w *way) measure(t *testing.T) {
	t.Helper()
	before, start := busy(t, w.pid), time.Now()
	rate := bulk(t, w.at)
	w.sent += rate * time.Since(start).Seconds()
	w.sentCPU += busy(t, w.pid) - before
	w.rates = append(w.rates, rate*8/1e9)
	before, start = busy(t, w.pid), time.Now()
	rate = connections(t, w.at)
	w.made += rate * time.Since(start).Seconds()
	w.madeCPU += busy(t, w.pid) - before
	w.conns = append(w.conns, rate)
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// TestMeasure compares the engine with haproxy on the same path, in turns.
func TestMeasure(t *testing.T) {
	to := sink(t)
	ways := []*way{{name: "direct", at: to}, {name: "engine"}, {name: "haproxy"}, {name: "haproxy splice-auto"}}
	ways[1].at, ways[1].pid = apart(t, to)
	ways[2].at, ways[2].pid = haproxy(t, to, "")
	ways[3].at, ways[3].pid = haproxy(t, to, " option splice-auto")
	for range 7 {
		for _, w := range ways {
			w.measure(t)
		}
	}
	for _, w := range ways {
		t.Logf("%-20s median of 7: %6.2f Gbit/s (%v of processor time a GB), %6.0f connections/s (%v each)", w.name,
			median(w.rates), (w.sentCPU * 1000 / time.Duration(1+w.sent/1e6)).Round(time.Millisecond), median(w.conns), w.madeCPU/time.Duration(1+w.made))
	}
	for _, w := range ways[2:] {
		t.Logf("engine against %s: bulk %.2f, connections %.2f", w.name, median(ways[1].rates)/median(w.rates), median(ways[1].conns)/median(w.conns))
	}
}

// TestMeasureDeadEndpoint measures what a client waits while one of two endpoints
// does not answer.
func TestMeasureDeadEndpoint(t *testing.T) {
	dead := refusing(t)
	w := newWorld(t, Config{Hooks: Hooks{Dial: deaf{dead: true}.dial}}, v1.ProtocolTCP)
	at := w.listen(t)
	w.serveAt(at, dead, sink(t))
	var mu sync.Mutex
	var all []time.Duration
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				took, err := askOnce(at)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				all = append(all, took)
				mu.Unlock()
				time.Sleep(10 * time.Millisecond) // a client that comes now and then
			}
		})
	}
	wg.Wait()
	slices.Sort(all)
	n := len(all)
	t.Logf("%d connections: median %v, p99 %v, p99.9 %v, longest %v", n, all[n/2], all[n*99/100], all[n*999/1000], all[n-1])
	if p99 := all[n*99/100]; p99 > 50*time.Millisecond {
		t.Errorf("p99 is %v, want 50 ms at most", p99)
	}
}

// TestMeasureMemory measures what a silent connection holds.
func TestMeasureMemory(t *testing.T) {
	w := newWorld(t, Config{}, v1.ProtocolTCP)
	to := named(t)
	at := w.listen(t)
	w.serveAt(at, to)
	_, _ = whoAt(t, at)
	resident := func() int {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapInuse + m.StackInuse)
	}
	const n = 2000
	measure := func(to netip.AddrPort) int {
		before := resident()
		var open []*net.TCPConn
		for range n {
			_, c := whoAt(t, to)
			open = append(open, c)
		}
		time.Sleep(2 * lull)
		after := resident()
		for _, c := range open {
			shut(c)
		}
		eventually(t, "all are over", func() bool { return w.Stats().Connections <= 1 })
		return (after - before) / n
	}
	direct := measure(to) // client and server are in this process too
	through := measure(at)
	t.Logf("a silent connection: %d bytes of heap and stacks in the engine (%d with client and server, %d of them without it)",
		through-direct, through, direct)
}
