//go:build measure

package engine

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
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

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// sink starts a server that answers the byte '?' with a byte, and discards everything else.
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

// discard reads until the end, and has the kernel discard the data, so that the measurement
// does not include copying it.
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

// unused returns an address at which a program may listen.
func unused(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	testenv.NoError(t, err)
	defer shut(l)
	return addrOf(l.Addr())
}

// haproxy runs haproxy in TCP mode in front of a server.
func haproxy(t *testing.T, to netip.AddrPort, options string) (at netip.AddrPort, pid int) {
	t.Helper()
	path, err := exec.LookPath("haproxy")
	if err != nil {
		t.Fatal("haproxy, which the engine is compared with, is not installed: apt-get install haproxy")
	}
	at = unused(t)
	config := filepath.Join(t.TempDir(), "haproxy.cfg")
	text := fmt.Sprintf("global\n maxconn 4000\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 1h\n timeout server 1h\n%s\nlisten l\n bind %v\n server s %v\n", options, at, to)
	testenv.NoError(t, os.WriteFile(config, []byte(text), 0o600))
	return at, run(t, exec.CommandContext(t.Context(), path, "-f", config, "-db"), at)
}

// otherVariable is the path of another version of this test program, whose engine is measured, too.
const otherVariable = "VIPKIT_MEASURE_OTHER"

// apart runs the engine of a test program in a process of its own in front of a server.
func apart(t *testing.T, to netip.AddrPort, program string) (at netip.AddrPort, pid int) {
	t.Helper()
	at = unused(t)
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%v %v", engineVariable, at, to))
	if _, err := cmd.StdinPipe(); err != nil { // the process ends with its input
		t.Fatal(err)
	}
	return at, run(t, cmd, at)
}

// run starts a program that listens, and ends it with the test.
func run(t *testing.T, cmd *exec.Cmd, at netip.AddrPort) (pid int) {
	t.Helper()
	testenv.NoError(t, cmd.Start())
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

// bulk sends as much as possible for a while, and returns bytes a second.
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
			_, _ = io.ReadFull(c, buf[:1]) // the server answers when it has read everything
		})
	}
	wg.Wait()
	return float64(total.Load()) / time.Since(start).Seconds()
}

// connections opens and closes connections for a while, each with a request and an answer,
// and returns their number a second.
func connections(t *testing.T, to netip.AddrPort, clients int) float64 {
	t.Helper()
	const long = 250 * time.Millisecond
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
	_ = c.SetLinger(0) // a reset leaves no port in TIME_WAIT
	var b [1]byte
	if _, err := c.Write([]byte("?")); err != nil {
		return 0, err
	}
	_, err = io.ReadFull(c, b[:])
	return time.Since(start), err
}

// path is a measured path, with the process that carries its data.
type path struct {
	name string
	at   netip.AddrPort
	pid  int
	bulk map[int]*samples // by the number of connections at once; Gbit/s
	conn map[int]*samples // by the number of clients at once; a second
}

// samples are rates, with the work that was done and the processor time used.
type samples struct {
	rates []float64 // one for each round
	done  float64
	busy  time.Duration
}

// add measures once more.
func (s *samples) add(t *testing.T, pid int, measure func() float64) {
	t.Helper()
	before, start := busy(t, pid), time.Now()
	rate := measure()
	s.done += rate * time.Since(start).Seconds()
	s.busy += busy(t, pid) - before
	s.rates = append(s.rates, rate)
}

// quartiles returns the median, and the bounds of the middle half of the values.
func quartiles(values []float64) (median, low, high float64) {
	v := slices.Sorted(slices.Values(values))
	return v[len(v)/2], v[len(v)/4], v[len(v)-1-len(v)/4]
}

// against returns the quartiles of the ratios to what was measured in the same rounds.
func (s *samples) against(other *samples) (median, low, high float64) {
	ratios := make([]float64, len(s.rates))
	for i := range ratios {
		ratios[i] = s.rates[i] / other.rates[i]
	}
	return quartiles(ratios)
}

// busy returns the processor time that a process has used.
func busy(t *testing.T, pid int) time.Duration {
	t.Helper()
	if pid == 0 {
		return 0
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	testenv.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// atOnce are the numbers of connections that are measured at once.
func atOnce() []int { return []int{1, 2, 8} }

// log logs the results of a path, and their ratios to those of the other paths.
func (p *path) log(t *testing.T, others []*path) {
	t.Helper()
	ratios := func(of func(*path) *samples) (text string) {
		for _, o := range others {
			if o != p {
				median, low, high := of(p).against(of(o))
				text += fmt.Sprintf("; %.2f (%.2f to %.2f) of %s", median, low, high, o.name)
			}
		}
		return text
	}
	for _, n := range atOnce() {
		s := p.bulk[n]
		median, low, high := quartiles(s.rates)
		t.Logf("%s, bulk on %d: %.1f (%.1f to %.1f) Gbit/s, %.0f ms of processor time a GB%s", p.name, n,
			median, low, high, s.busy.Seconds()*1000/(s.done/8), ratios(func(p *path) *samples { return p.bulk[n] }))
	}
	for _, n := range atOnce() {
		s := p.conn[n]
		median, low, high := quartiles(s.rates)
		t.Logf("%s, new connections by %d: %.0f (%.0f to %.0f) a second, %.1f µs of processor time each%s", p.name, n,
			median, low, high, s.busy.Seconds()*1e6/s.done, ratios(func(p *path) *samples { return p.conn[n] }))
	}
}

// TestMeasure compares the engine with haproxy, and with that of another version of this program,
// in turns. Each round has a ratio; the medians of the ratios are printed, with their quartiles.
func TestMeasure(t *testing.T) {
	to := sink(t)
	all := []*path{{name: "engine"}, {name: "haproxy"}, {name: "haproxy splicing"}}
	all[0].at, all[0].pid = apart(t, to, "/proc/self/exe")
	all[1].at, all[1].pid = haproxy(t, to, "")
	all[2].at, all[2].pid = haproxy(t, to, " option splice-request\n option splice-response") // splice-auto copies
	if program := os.Getenv(otherVariable); program != "" {
		other := &path{name: "other version"}
		other.at, other.pid = apart(t, to, program)
		all = append(all, other)
	}
	for _, p := range all {
		p.bulk, p.conn = map[int]*samples{}, map[int]*samples{}
		for _, n := range atOnce() {
			p.bulk[n], p.conn[n] = &samples{}, &samples{}
		}
	}
	const rounds = 15
	for range rounds {
		for _, n := range atOnce() {
			inTurns(all, func(p *path) {
				p.bulk[n].add(t, p.pid, func() float64 { return bulk(t, p.at, n) * 8 / 1e9 })
			})
			inTurns(all, func(p *path) {
				p.conn[n].add(t, p.pid, func() float64 { return connections(t, p.at, n) })
			})
		}
	}
	for _, p := range all {
		p.log(t, all)
	}
}

// inTurns measures all paths, in random order.
func inTurns(all []*path, measure func(*path)) {
	for _, i := range rand.Perm(len(all)) {
		measure(all[i])
	}
}

// TestMeasureDeadEndpoint measures how long clients wait while one of two endpoints does not
// answer.
func TestMeasureDeadEndpoint(t *testing.T) {
	dead := refusing(t)
	w := newFixture(t, Config{Hooks: Hooks{Dial: unresponsive{dead: true}.dial}}, v1.ProtocolTCP)
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
				time.Sleep(10 * time.Millisecond) // between a client's connections
			}
		})
	}
	wg.Wait()
	slices.Sort(all)
	n := len(all)
	t.Logf("%d connections: median %v, p99 %v, p99.9 %v, longest %v", n, all[n/2], all[n*99/100], all[n*999/1000], all[n-1])
	if p99 := all[n*99/100]; p99 > 50*time.Millisecond {
		t.Errorf("p99: got %v, want 50 ms at most", p99)
	}
}
