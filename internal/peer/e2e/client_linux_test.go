package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// ask makes a connection, or sends a datagram, and reads the answer.
func ask(ctx context.Context, from *netns.NS, network string, to netip.AddrPort) (lab.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return lab.Ask(ctx, from, network, to.String())
}

// reaches repeats many requests until exactly the wanted pods reply.
func reaches(t *testing.T, from *netns.NS, network string, to netip.AddrPort, want ...*pod) {
	t.Helper()
	names := map[string]bool{}
	for _, p := range want {
		names[p.name] = true
	}
	eventually(t, fmt.Sprintf("%s %v reaches %v", network, to, slices.Sorted(maps.Keys(names))), func() error {
		got := map[string]bool{}
		// The chance that one of three pods gets none of 60 requests is 1e-10.
		for range 60 {
			a, err := ask(t.Context(), from, network, to)
			if err != nil {
				return err
			}
			if !names[a.Name] {
				return fmt.Errorf("got a reply of %s", a.Name)
			}
			if got[a.Name] = true; len(got) == len(names) && len(names) == 1 {
				break
			}
		}
		if len(got) != len(names) {
			return fmt.Errorf("got replies of %v only", slices.Sorted(maps.Keys(got)))
		}
		return nil
	})
}

// load is a client that makes new connections all the time.
type load struct {
	cancel   context.CancelFunc
	tasks    sync.WaitGroup
	mu       sync.Mutex
	served   map[string]int
	failures []error
}

// startLoad makes connections at a rate, to each of the addresses in turn.
func startLoad(t *testing.T, from *netns.NS, perSecond int, to ...netip.AddrPort) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{cancel: cancel, served: map[string]int{}}
	t.Cleanup(func() { l.stop() })
	l.tasks.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-tick.C:
				l.tasks.Go(func() { l.one(from, to[i%len(to)]) })
			case <-ctx.Done():
				return
			}
		}
	})
	return l
}

// one makes a connection. The end of the load does not interrupt it, so that it fails only if
// the connection does.
func (l *load) one(from *netns.NS, to netip.AddrPort) {
	a, err := ask(context.Background(), from, "tcp", to)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failures = append(l.failures, fmt.Errorf("%s: %w", time.Now().Format(time.StampMilli), err))
		return
	}
	l.served[a.Name]++
}

// stop ends the load and gives the successful connections by pod, and the failures.
func (l *load) stop() (served map[string]int, failures []error) {
	l.cancel()
	l.tasks.Wait()
	return l.served, l.failures
}

// wantNoFailures ends the load after at least the given number of connections, and fails the
// test if any has failed.
func (l *load) wantNoFailures(t *testing.T, atLeast int) {
	t.Helper()
	eventually(t, fmt.Sprintf("the load has made %d connections", atLeast), func() error {
		if sum := l.sum(); sum < atLeast {
			return fmt.Errorf("got %d", sum)
		}
		return nil
	})
	served, failures := l.stop()
	sum := l.sum()
	t.Logf("%d connections, %d failures: %v", sum, len(failures), served)
	if len(failures) > 0 {
		t.Errorf("failed connections: got %d of %d, want none; the first: %v", len(failures), sum+len(failures), failures[0])
	}
}

func (l *load) sum() (sum int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.served {
		sum += n
	}
	return sum
}

// sender is a client that sends datagrams all the time from one port, a thousand a second.
// For the kernel all of them are one flow.
type sender struct {
	from, to netip.AddrPort

	mu        sync.Mutex
	server    string    // the pod of the last reply
	repliedAt time.Time // the time of the last reply
}

// startSender sends from a port of a host until the test ends.
func startSender(t *testing.T, host *netns.NS, from, to netip.AddrPort) *sender {
	t.Helper()
	conn, err := host.ListenPacket(t.Context(), "udp", from.String())
	testenv.NoError(t, err)
	s := &sender{from: from, to: to}
	stop := make(chan struct{})
	var tasks sync.WaitGroup
	tasks.Go(func() { s.send(conn, stop) })
	tasks.Go(func() { s.receive(conn) })
	t.Cleanup(func() {
		close(stop)
		_ = conn.Close() // No goroutine uses it any more.
		tasks.Wait()
	})
	return s
}

func (s *sender) String() string { return fmt.Sprintf("the flow from %v to %v", s.from, s.to) }

func (s *sender) send(conn net.PacketConn, stop <-chan struct{}) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	to := net.UDPAddrFromAddrPort(s.to)
	for {
		select {
		case <-tick.C:
			_, _ = conn.WriteTo([]byte("?"), to) // The next datagram repeats a refused one.
		case <-stop:
			return
		}
	}
}

func (s *sender) receive(conn net.PacketConn) {
	text := make([]byte, 256)
	for {
		n, _, err := conn.ReadFrom(text)
		if err != nil {
			return // The sender stops.
		}
		a, err := lab.ParseAnswer(string(text[:n]))
		if err != nil {
			continue // Without an answer, the test fails.
		}
		s.mu.Lock()
		s.server, s.repliedAt = a.Name, time.Now()
		s.mu.Unlock()
	}
}

// served returns the pod of the last reply, and whether that arrived after a time.
func (s *sender) served(since time.Time) (pod string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server, s.repliedAt.After(since)
}
