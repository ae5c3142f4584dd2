//go:build measure

package engine

import (
	"errors"
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
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
		_ = discard(c, make([]byte, 1<<20))
		_, _ = c.Write(first[:])
	})
}

// discard takes what comes until the end, and has the kernel throw it away: what
// is measured shall not wait for the copying of others.
func discard(c net.Conn, buf []byte) error {
	tcp, ok := c.(syscall.Conn)
	if !ok {
		return errors.ErrUnsupported
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_TRUNC)
			if errors.Is(err, unix.EAGAIN) {
				return false
			}
			if n == 0 || err != nil {
				failure = err
				return true
			}
		}
	})
	return errors.Join(err, failure)
}

// unused gives an address at which a program may listen.
func unused(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer shut(l)
	return addrOf(l.Addr())
}

// haproxy runs the program of that name in TCP mode in front of a server.
func haproxy(t *testing.T, to netip.AddrPort, options string) (at netip.AddrPort, pid int) {
	t.Helper()
	path, err := exec.LookPath("haproxy")
	if err != nil {
		t.Fatal("haproxy is not installed, and there is nothing to compare with: apt-get install haproxy")
	}
	at = unused(t)
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
	at = unused(t)
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
func bulk(t *testing.T, to netip.AddrPort, streams int) float64 {
	t.Helper()
	const long = 250 * time.Millisecond
	var total atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range streams {
		wg.Go(func() {
			c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(to))
			if err != nil {
				t.Error(err)
				return
			}
			defer shut(c)
			buf := make([]byte, 256<<10) // it stays in the cache of the processor
			for time.Since(start) < long {
				n, err := c.Write(buf)
				if err != nil {
					t.Error(err)
					return
				}
				total.Add(int64(n))
			}
			_ = c.CloseWrite()
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
	const clients, long = 16, 250 * time.Millisecond
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

// path is a path that is measured, with the process that carries it.
type path struct {
	name string
	at   netip.AddrPort
	pid  int
	bulk map[int]*samples // by the number of streams; Gbit/s
	conn samples          // a second
}

// samples are rates, with the work and the processor time that they took.
type samples struct {
	rates []float64
	done  float64
	busy  time.Duration
}

// add takes one more.
func (s *samples) add(t *testing.T, pid int, measure func() float64) {
	t.Helper()
	before, start := busy(t, pid), time.Now()
	rate := measure()
	s.done += rate * time.Since(start).Seconds()
	s.busy += busy(t, pid) - before
	s.rates = append(s.rates, rate)
}

func (s *samples) median() float64 {
	slices.Sort(s.rates)
	return s.rates[len(s.rates)/2]
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

// streams are the numbers of connections on which bulk data is sent at a time.
func streams() []int { return []int{1, 2, 8} }

func (p *path) measure(t *testing.T) {
	t.Helper()
	for _, n := range streams() {
		if p.bulk[n] == nil {
			p.bulk[n] = &samples{}
		}
		p.bulk[n].add(t, p.pid, func() float64 { return bulk(t, p.at, n) * 8 / 1e9 })
	}
	p.conn.add(t, p.pid, func() float64 { return connections(t, p.at) })
}

// TestMeasure compares the engine with haproxy on the same path, in turns.
func TestMeasure(t *testing.T) {
	to := sink(t)
	var all []*path
	for _, name := range []string{"direct", "engine", "haproxy", "haproxy, splicing"} {
		all = append(all, &path{name: name, at: to, bulk: map[int]*samples{}})
	}
	all[1].at, all[1].pid = apart(t, to)
	all[2].at, all[2].pid = haproxy(t, to, "")
	all[3].at, all[3].pid = haproxy(t, to, " option splice-request\n option splice-response") // splice-auto copies
	const rounds = 7
	for range rounds {
		for _, p := range all {
			p.measure(t)
		}
	}
	for _, p := range all {
		for _, n := range streams() {
			t.Logf("%-20s median of %d: %6.2f Gbit/s on %d streams (%.0f ms of processor time a GB)", p.name, rounds,
				p.bulk[n].median(), n, p.bulk[n].busy.Seconds()*1000/(1e-9+p.bulk[n].done/8))
		}
		t.Logf("%-20s median of %d: %6.0f connections/s (%.1f µs of processor time each)", p.name, rounds,
			p.conn.median(), p.conn.busy.Seconds()*1e6/p.conn.done)
	}
	for _, p := range all[2:] {
		for _, n := range streams() {
			t.Logf("engine against %s: bulk on %d streams %.2f", p.name, n, all[1].bulk[n].median()/p.bulk[n].median())
		}
		t.Logf("engine against %s: connections %.2f", p.name, all[1].conn.median()/p.conn.median())
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
