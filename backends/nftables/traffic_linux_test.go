package nftables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

const greeting = "hello\n"

// street is a client, a node with a backend, and a server with many addresses,
// in a row.
type street struct {
	*stage
	client *netns.NS
	server *netns.NS
	hosts  []netip.Addr
}

func newStreet(t testing.TB, hosts int) *street {
	t.Helper()
	client, server := netnstest.NewNS(t), netnstest.NewNS(t)
	s := &street{stage: newStage(t, Options{}), client: client, server: server}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(netns.Link(netns.End{NS: client, Name: "up"}, netns.End{NS: s.ns, Name: "clients"}))
	must(netns.Link(netns.End{NS: server, Name: "up"}, netns.End{NS: s.ns, Name: "servers"}))
	must(s.ns.AddAddress("clients", netip.MustParsePrefix("192.0.2.1/24")))
	must(client.AddAddress("up", netip.MustParsePrefix("192.0.2.2/24")))
	must(s.ns.AddAddress("servers", netip.MustParsePrefix("10.0.0.1/16")))
	all := netip.MustParsePrefix("0.0.0.0/0")
	must(client.AddRoute(netns.Route{To: all, Link: "up", Via: netip.MustParseAddr("192.0.2.1")}))
	for i := range hosts {
		a := hostIP(v1.IPv4Protocol, 2+i)
		s.hosts = append(s.hosts, a)
		must(server.AddAddress("up", netip.PrefixFrom(a, 16)))
	}
	must(server.AddRoute(netns.Route{To: all, Link: "up", Via: netip.MustParseAddr("10.0.0.1")}))
	must(s.ns.Forward())
	must(client.Sysctl("net/ipv4/ip_local_port_range", "1024 65535"))
	must(client.Sysctl("net/ipv4/tcp_tw_reuse", "1"))
	listener, err := server.Listen(t.Context(), "tcp", "0.0.0.0:8080")
	must(err)
	var wg sync.WaitGroup
	wg.Go(func() { greet(listener) })
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
	return s
}

// greet greets everybody until the listener is closed.
func greet(l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // the client has gone
		}
		_, _ = io.WriteString(c, greeting)
		// With a reset, neither side keeps the connection in TIME_WAIT,
		// where it would use up ports.
		_ = c.Close()
	}
}

// ask connects, reads the greeting and hangs up. It runs in the namespace of
// the client.
func ask(ctx context.Context, address string) error {
	return askFrom(ctx, netip.Addr{}, address)
}

// askFrom is ask with a source address, if it is valid.
func askFrom(ctx context.Context, source netip.Addr, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var d net.Dialer
	if source.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // the greeting is all that counts
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		if err := tcp.SetLinger(0); err != nil {
			return err
		}
	}
	got := make([]byte, len(greeting))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != greeting {
		return fmt.Errorf("greeting: got %q, want %q", got, greeting)
	}
	return nil
}

// pool takes n endpoints from first on, around the corner.
func (s *street) pool(first, n int) []*endpoints.Endpoint {
	var out []*endpoints.Endpoint
	for i := range n {
		a := s.hosts[(first+i)%len(s.hosts)]
		out = append(out, &endpoints.Endpoint{Addr: netip.AddrPortFrom(a, 8080), Ready: true, Serving: true})
	}
	slices.SortFunc(out, (*endpoints.Endpoint).Compare)
	return out
}

// No packet is lost to a commit, though a packet may find the service as it was
// before one, and its endpoints as they are after it.
func TestNoConnectionIsLostToCommits(t *testing.T) {
	const (
		length = 4 * time.Second
		most   = 10_000
	)
	r := testenv.Random(t)
	s := newStreet(t, 16)
	vip := newPort(v1.IPv4Protocol, 0, 0)
	vip.Cluster = s.pool(0, 4)
	s.apply(t, proxy.NewSnapshot(testNode(), vip))

	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	done := s.askOnAndOn(ctx, t, vip.Frontends[0].Addr.String())
	commits, start := 0, time.Now()
	for ; commits < most && ctx.Err() == nil; commits++ {
		next := *vip
		next.Cluster = s.pool(r.IntN(len(s.hosts)), 1+r.IntN(len(s.hosts)))
		s.apply(t, proxy.NewSnapshot(testNode(), &next))
	}
	elapsed := time.Since(start).Round(time.Millisecond)
	cancel()
	asked, failed := done()
	t.Logf("%d connections, %d failed, while the endpoints were replaced %d times in %v", asked, failed, commits, elapsed)
	if asked < 100 || commits < 100 {
		t.Errorf("only %d connections and %d commits show nothing", asked, commits)
	}
}

// askOnAndOn has several clients connect again and again until ctx ends. Every
// connection that fails is an error of the test.
func (s *street) askOnAndOn(ctx context.Context, t *testing.T, address string) (done func() (asked, failed int64)) {
	t.Helper()
	const clients = 8
	var asked, failed atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			err := s.client.Do(func() error {
				for ctx.Err() == nil {
					asked.Add(1)
					if err := ask(context.WithoutCancel(ctx), address); err != nil {
						failed.Add(1)
						t.Error(err)
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	return func() (int64, int64) {
		wg.Wait()
		return asked.Load(), failed.Load()
	}
}

// A full affinity map forgets nobody and refuses nobody: further clients are
// served, but not remembered.
func TestAffinityClientsAreBounded(t *testing.T) {
	const bound, clients = 10, 30
	s := newStreet(t, 4)
	s.options.AffinityClients = bound
	s.restart(t)
	p := stickyPort(v1.IPv4Protocol, 0, 0)
	p.Cluster = s.pool(0, 4)
	s.apply(t, proxy.NewSnapshot(testNode(), p))
	for i := range clients {
		source := netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)})
		if err := s.client.AddAddress("up", netip.PrefixFrom(source, 24)); err != nil {
			t.Fatal(err)
		}
		err := s.client.Do(func() error { return askFrom(t.Context(), source, p.Frontends[0].Addr.String()) })
		if err != nil {
			t.Errorf("client %d of %d: %v", i+1, clients, err)
		}
	}
	total := 0
	for _, n := range s.clients(t, p) {
		total += n
	}
	if total != bound {
		t.Errorf("clients that are remembered: got %d, want %d", total, bound)
	}
}

// BenchmarkConnect measures a TCP connection and its greeting, from one end of
// the street to the other.
func BenchmarkConnect(b *testing.B) {
	for _, c := range []struct {
		name     string
		services int
	}{{"direct", 0}, {"services=1", 1}, {"services=10000", 10_000}} {
		b.Run(c.name, func(b *testing.B) {
			s := newStreet(b, 4)
			address := netip.AddrPortFrom(s.hosts[0], 8080).String()
			if c.services > 0 {
				var all []*proxy.ServicePort
				for i := range c.services {
					p := newPort(v1.IPv4Protocol, i, 10)
					all = append(all, p)
				}
				all[0].Cluster = s.pool(0, 4)
				address = all[0].Frontends[0].Addr.String()
				s.apply(b, proxy.NewSnapshot(testNode(), all...))
			}
			measure(b, s, address)
		})
	}
}

func measure(b *testing.B, s *street, address string) {
	b.Helper()
	var times []time.Duration
	err := s.client.Do(func() error {
		for b.Loop() {
			start := time.Now()
			if err := ask(b.Context(), address); err != nil {
				return err
			}
			times = append(times, time.Since(start))
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
}
