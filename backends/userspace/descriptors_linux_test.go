package userspace_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// limited makes the test program a process with few file descriptors that serves Services, by the capture of that
// number, until its input ends. It answers each line of its input with its status; the line "more" adds a Service.
const limited = "VIPKIT_TEST_LIMITED"

const (
	fewDescriptors = 1024
	dnsAddr        = "10.96.0.1:53"
	filesOpened    = 100
)

// status is what a limited process reports.
type status struct {
	proxy.ConnectionCounts

	// Open is how many descriptors it has, Files how many of filesOpened further files it
	// could open.
	Open, Files int
	// Failed is the error of adding a Service.
	Failed string
}

// serveLimited is the limited process.
func serveLimited(t *testing.T) {
	t.Helper()
	capture, err := strconv.ParseUint(os.Getenv(limited), 10, 8)
	if err == nil {
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: fewDescriptors, Max: fewDescriptors})
	}
	testenv.NoError(t, err)
	b, err := userspace.New(userspace.Options{Capture: userspace.Capture(capture), Timeouts: userspace.Timeouts{Session: time.Second}})
	testenv.NoError(t, err)
	defer b.Close() //nolint:errcheck // the process ends with it
	first := services(web(one), dns(dnsAddr))
	apply(t, b, first)
	out := json.NewEncoder(os.NewFile(3, "status"))
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		s := statusOf(b)
		if in.Text() == "more" {
			if err := b.Apply(t.Context(), first, and(first, web(two))); err != nil {
				s.Failed = err.Error()
			}
		}
		testenv.NoError(t, out.Encode(s))
	}
}

func statusOf(b *userspace.Backend) (s status) {
	s.ConnectionCounts = b.Abilities().CountConnections()
	s.Fault = nil
	if all, err := os.ReadDir("/proc/self/fd"); err == nil {
		s.Open = len(all)
	}
	for range filesOpened {
		f, err := os.Open("/proc/self/status")
		if err != nil {
			break
		}
		defer f.Close() //nolint:errcheck // nothing was written
		s.Files++
	}
	return s
}

// limitedNode is a network whose node has a limited process.
type limitedNode struct {
	network
	in  io.Writer
	out *json.Decoder
}

func newLimitedNode(t *testing.T, c userspace.Capture) *limitedNode {
	t.Helper()
	n := &limitedNode{network: newNetwork(t)}
	var log strings.Builder
	near, far, err := os.Pipe()
	testenv.NoError(t, err)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "/proc/self/exe", "-test.run=^TestFewDescriptors$", "-test.v")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", limited, c))
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &log, &log, []*os.File{far}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = n.node().Do(cmd.Start)
	}
	testenv.NoError(t, errors.Join(err, far.Close()))
	n.in, n.out = in, json.NewDecoder(near)
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait(), near.Close()); err != nil {
			t.Errorf("the limited process: %v\n%s", err, &log)
		}
	})
	n.wantHealthy(t, "once it serves")
	return n
}

// wantHealthy checks that the limited process works, whatever its clients do, and returns its
// status.
func (n *limitedNode) wantHealthy(t *testing.T, when string) (s status) {
	t.Helper()
	_, err := fmt.Fprintln(n.in, when)
	if err == nil {
		err = n.out.Decode(&s)
	}
	switch {
	case err != nil || s.Failed != "":
		t.Errorf("%s: status: got errors %v and %q, want none", when, err, s.Failed)
	case s.Files != filesOpened:
		t.Errorf("%s: opened files: got %d, want %d", when, s.Files, filesOpened)
	case s.Open > fewDescriptors-fewDescriptors/4+64:
		t.Errorf("%s: open descriptors: got %d, want three quarters of %d and a few", when, s.Open, fewDescriptors)
	case s.Faults != 0:
		t.Errorf("%s: errors of listeners: got %d, want none", when, s.Faults)
	}
	return s
}

// A client that sends as much as it can does not stop anything else: connections of all
// Services, new Services, probes and files work, and of the client's own sessions those end
// that have been idle for longest.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	if os.Getenv(limited) != "" {
		serveLimited(t)
		return
	}
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newLimitedNode(t, c)
		for round := range 2 { // the flood ends, and begins again
			n.floodDatagrams(t, 2_500)
			for range 20 {
				_, conn := n.wantAnswer(t, one)
				_ = conn.Close()
			}
			s := n.wantHealthy(t, "after a flood of datagrams")
			if s.Sessions > 227 || s.Crowded < 2_000 {
				t.Errorf("round %d: got %d sessions and %d crowded, want 227 at most and 2000 at least", round, s.Sessions, s.Crowded)
			}
			n.wantHealthy(t, "more")
			_, conn := n.wantAnswer(t, two)
			_ = conn.Close()
			eventually(t, "the sessions have ended", func() bool { return n.wantHealthy(t, "later").Sessions == 0 })
		}
		n.floodConnections(t)
	})
}

// floodDatagrams sends one datagram from each of many ports, and from one port now and then,
// whose session must be kept.
func (n *limitedNode) floodDatagrams(t *testing.T, many int) {
	t.Helper()
	steady := n.flow(t, dnsAddr)
	seen := askAgain(t, steady).Client
	for i := range many {
		c := n.flow(t, dnsAddr)
		send(t, c, "?")
		_ = c.Close()
		if i%16 == 0 {
			if got := askAgain(t, steady).Client; got != seen {
				t.Fatalf("after %d datagrams from other ports: the endpoint sees %v, want %v as before", i, got, seen)
			}
		}
	}
	askAgain(t, n.flow(t, dnsAddr))
}

// floodConnections opens as many connections to one Service as many clients get, and sends as
// much as possible.
func (n *limitedNode) floodConnections(t *testing.T) {
	t.Helper()
	var all []net.Conn
	var wg sync.WaitGroup
	for i := range 600 {
		c, err := n.dialAs(t, i, 32)
		if err != nil {
			continue // It was reset.
		}
		all = append(all, c)
		wg.Go(func() { _, _ = io.Copy(io.Discard, c.Conn) })
		wg.Go(func() { _, _ = c.Write([]byte(strings.Repeat(strings.Repeat("x", 64<<10)+"\n", 64))) })
	}
	eventually(t, "one Service has its share", func() bool {
		s := n.wantHealthy(t, "while connections are opened")
		return s.Connections >= 140 && s.Crowded > 300
	})
	n.wantAnswer(t, two) // another Service has room
	askAgain(t, n.flow(t, dnsAddr))
	if s := n.wantHealthy(t, "with all connections"); s.Connections > 192 {
		t.Errorf("connections: got %d, want 192 at most", s.Connections)
	}
	for _, x := range all {
		_ = x.Close()
	}
	wg.Wait()
	eventually(t, "the connections have ended", func() bool { return n.wantHealthy(t, "at the end").Connections < 10 })
	n.wantAnswer(t, one)
}

// dialAs connects to the first Service as the client with a number, of several clients.
func (n network) dialAs(t *testing.T, number, clients int) (*lab.Conn, error) {
	t.Helper()
	from := netip.AddrFrom4([4]byte{10, 244, 1, byte(20 + number%clients)})
	if number < clients {
		testenv.NoError(t, n.NS("client").AddAddress("eth0", netip.PrefixFrom(from, 24)))
	}
	return n.dial(t, "tcp", netip.AddrPortFrom(from, 0), one)
}
