package userspace_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
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

// limited makes the test program a process with few file descriptors that serves
// Services, by the capture of that number, until its input ends.
const limited = "VIPKIT_TEST_LIMITED"

const (
	fewDescriptors = 1024
	statusAddr     = "10.244.1.1:8099"
	dnsAddr        = "10.96.0.1:53"
	filesOpened    = 100
)

// status is what a limited process reports.
type status struct {
	proxy.ConnectionCounts

	// Open is how many descriptors it has, Files how many of filesOpened further files it
	// could open.
	Open, Files int
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
	pages := http.NewServeMux()
	pages.HandleFunc("/status", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(statusOf(b))
	})
	pages.HandleFunc("/more", func(w http.ResponseWriter, r *http.Request) {
		if err := b.Apply(r.Context(), first, and(first, web(two))); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	l, err := net.Listen("tcp4", statusAddr)
	testenv.NoError(t, err)
	server := &http.Server{Handler: pages, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = server.Close()
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
	http http.Client
}

func newLimitedNode(t *testing.T, c userspace.Capture) *limitedNode {
	t.Helper()
	n := &limitedNode{network: newNetwork(t)}
	n.http.Transport = &http.Transport{DisableKeepAlives: true, DialContext: n.NS("client").Dial}
	n.http.Timeout = 20 * time.Second
	var out strings.Builder
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "/proc/self/exe", "-test.run=^TestFewDescriptors$", "-test.v")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", limited, c))
	cmd.Stdout, cmd.Stderr = &out, &out
	in, err := cmd.StdinPipe()
	if err == nil {
		err = n.node().Do(cmd.Start)
	}
	testenv.NoError(t, err)
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Errorf("the limited process: %v\n%s", err, &out)
		}
	})
	eventually(t, "the limited process serves", func() bool {
		_, err := n.get(t, "/status")
		return err == nil
	})
	return n
}

// get gets a page of the limited process.
func (n *limitedNode) get(t *testing.T, page string) ([]byte, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+statusAddr+page, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := n.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close() //nolint:errcheck // it was read
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, body)
	}
	return body, err
}

// wantHealthy checks that the limited process works, whatever its clients do, and returns its
// status.
func (n *limitedNode) wantHealthy(t *testing.T, when string) (s status) {
	t.Helper()
	body, err := n.get(t, "/status")
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	switch {
	case err != nil:
		t.Errorf("%s: status page: got error %v, want none", when, err)
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
			if _, err := n.get(t, "/more"); err != nil {
				t.Errorf("adding a Service: got error %v, want none", err)
			}
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
