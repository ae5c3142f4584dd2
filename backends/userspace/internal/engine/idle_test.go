package engine

import (
	"context"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Whichever sessions are used or ended, the index finds the one that has been idle for
// longest, of all and of each client and service port.
func TestLongestIdle(t *testing.T) {
	t.Parallel()
	random := testenv.Random(t)
	services := []*service{{}, {}, {}}
	clients := []netip.Addr{alice, bob, carol}
	for range 50 {
		i, all := idleIndex{}, []*session(nil)
		for now := range int64(500) {
			switch n := random.IntN(10); {
			case n < 4 || len(all) == 0:
				s := &session{holder: holder{clients[random.IntN(3)], services[random.IntN(3)]}}
				s.used.Store(now)
				all = append(all, s)
				i.add(s)
			case n < 8:
				all[random.IntN(len(all))].used.Store(now)
			default:
				at := random.IntN(len(all))
				i.remove(all[at])
				all = slices.Delete(all, at, at+1)
			}
			c, s := clients[random.IntN(3)], services[random.IntN(3)]
			checkLongest(t, i[nil], all, func(*session) bool { return true })
			checkLongest(t, i[c], all, func(x *session) bool { return x.holder.client == c })
			checkLongest(t, i[s], all, func(x *session) bool { return x.holder.service == s })
		}
	}
}

// checkLongest checks that the heap finds the session that has been idle for longest, among
// those for which a condition holds.
func checkLongest(t *testing.T, h *idle, all []*session, is func(*session) bool) {
	t.Helper()
	var want *session
	for _, s := range all {
		if is(s) && (want == nil || s.used.Load() < want.used.Load()) {
			want = s
		}
	}
	if h == nil || len(*h) == 0 {
		if want != nil {
			t.Fatalf("%d sessions: got an empty heap, want the session used at %d", len(all), want.used.Load())
		}
		return
	}
	if got := h.longest(); got != want {
		t.Fatalf("%d sessions: got the one that was used at %d, want another one", len(all), got.used.Load())
	}
}

// flowFrom returns the flow from a client's port to a frontend.
func flowFrom(client netip.Addr, port int, frontend netip.AddrPort) Flow {
	return Flow{Protocol: v1.ProtocolUDP, Client: netip.AddrPortFrom(client, uint16(port)), Frontend: frontend, Origin: Pod}
}

// A session beyond a limit ends the one that has been idle for longest: of a client that has
// too many, of a service port that has too many, otherwise of all.
func TestOldestSessionIsEvicted(t *testing.T) { //nolint:funlen // a table
	t.Parallel()
	second, third := netip.MustParseAddrPort("10.96.0.9:80"), netip.MustParseAddrPort("10.96.0.10:80")
	next := memoryClient.Addr()
	many := func(at netip.AddrPort, n int) (all []Flow) { // one flow of each client
		for range n {
			next = next.Next()
			all = append(all, flowFrom(next, 1, at))
		}
		return all
	}
	of := func(client netip.Addr, n int) (all []Flow) {
		for i := range n {
			all = append(all, flowFrom(client, 1+i, memoryFrontend))
		}
		return all
	}
	for name, c := range map[string]struct {
		before []Flow
		// next begins after the first flow of before was used again.
		next Flow
		gone int // index in before of the session that ends; -1 for none
	}{
		"the client's":                       {append(many(second, 2), of(alice, 6)...), flowFrom(alice, 99, memoryFrontend), 2},
		"the client's, whatever the Service": {append(many(second, 2), of(alice, 6)...), flowFrom(alice, 99, second), 2},
		"none, since half is free":           {append(many(second, 2), of(alice, 5)...), flowFrom(alice, 99, memoryFrontend), -1},
		"none, since the client has few":     {append(many(second, 4), many(memoryFrontend, 5)...), flowFrom(bob, 99, memoryFrontend), -1},
		"the Service's":                      {append(many(second, 3), many(memoryFrontend, 9)...), flowFrom(carol, 1, memoryFrontend), 3},
		"none, since a quarter is free":      {append(many(second, 2), many(memoryFrontend, 9)...), flowFrom(carol, 1, memoryFrontend), -1},
		"none, since the Service has few":    {append(many(second, 3), many(memoryFrontend, 9)...), flowFrom(carol, 1, second), -1},
		"of all":                             {slices.Concat(many(second, 5), many(third, 4), many(memoryFrontend, 7)), flowFrom(carol, 1, third), 1},
		"of all, though the client has one":  {slices.Concat(many(second, 5), many(third, 4), many(memoryFrontend, 6), of(carol, 1)), flowFrom(carol, 9, third), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, Config{Sessions: 16, Hooks: Hooks{Dial: dialAnySocket}}, v1.ProtocolUDP)
				w.Apply(proxy.NewSnapshot(&proxy.Node{}, forwarding("first", memoryFrontend, memoryEndpoint), forwarding("second", second, memoryEndpoint), forwarding("third", third, memoryEndpoint)))
				begin := func(f Flow) {
					time.Sleep(time.Second)
					w.Datagram(f, []byte("?"), nil)
				}
				for _, f := range c.before {
					begin(f)
				}
				begin(c.before[0])
				begin(c.next)
				for i, f := range append(c.before, c.next) {
					if s := w.sessions.byFlow[sessionKey{f.Client, f.Frontend}]; (s == nil) != (i == c.gone) {
						t.Errorf("session %d of %d: exists: got %v, want %v", i, len(c.before)+1, s != nil, i != c.gone)
					}
				}
				want := proxy.ConnectionCounts{Sessions: len(c.before) + 1}
				if c.gone >= 0 {
					want = proxy.ConnectionCounts{Sessions: len(c.before), Crowded: 1}
				}
				synctest.Wait()
				if got := countsOf(w); got != want {
					t.Errorf("got %+v, want %+v", got, want)
				}
				w.EndAll()
				synctest.Wait()
				if left := len(w.sessions.idle); left != 0 {
					t.Errorf("after the end of all: got sessions of %d groups, want none", left)
				}
			})
		})
	}
}

// If all source ports are in use, the session of the service port that has been idle for
// longest ends, or the longest idle one of a client that has most sessions: one client cannot
// keep all ports.
func TestSessionsAreEvictedForPorts(t *testing.T) {
	t.Parallel()
	second := netip.MustParseAddrPort("10.96.0.9:80")
	of := func(client netip.Addr, at netip.AddrPort, n int) (all []Flow) {
		for i := range n {
			all = append(all, flowFrom(client, 1+i, at))
		}
		return all
	}
	for name, c := range map[string]struct {
		before []Flow
		next   Flow
		gone   int // index in before of the session that ends; -1 for none
	}{
		"of another client":         {of(alice, memoryFrontend, 8), flowFrom(bob, 1, memoryFrontend), 0},
		"of the client":             {slices.Concat(of(bob, memoryFrontend, 2), of(alice, memoryFrontend, 6)), flowFrom(alice, 99, memoryFrontend), 2},
		"of another service port":   {slices.Concat(of(bob, second, 1), of(alice, memoryFrontend, 7)), flowFrom(carol, 1, memoryFrontend), 1},
		"the service port has none": {of(alice, memoryFrontend, 8), flowFrom(carol, 1, second), -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var ports atomic.Int64
				dial := func(ctx context.Context, d Dial) (net.Conn, error) {
					if ports.Add(1) > 8 {
						ports.Add(-1)
						return nil, ErrNoPort
					}
					conn, err := dialAnySocket(ctx, d)
					return &counted{Conn: conn, close: sync.OnceFunc(func() { ports.Add(-1) })}, err
				}
				w := newFixture(t, Config{Hooks: Hooks{Dial: dial}}, v1.ProtocolUDP)
				w.Apply(proxy.NewSnapshot(&proxy.Node{}, forwarding("first", memoryFrontend, memoryEndpoint), forwarding("second", second, memoryEndpoint)))
				for _, f := range append(c.before, c.next) {
					time.Sleep(time.Second)
					w.Datagram(f, []byte("?"), nil)
				}
				for i, f := range append(c.before, c.next) {
					gone := i == c.gone || c.gone < 0 && i == len(c.before)
					if s := w.sessions.byFlow[sessionKey{f.Client, f.Frontend}]; (s == nil) != gone {
						t.Errorf("session %d of %d: exists: got %v, want %v", i, len(c.before)+1, s != nil, !gone)
					}
				}
				synctest.Wait()
				if got, want := countsOf(w), (proxy.ConnectionCounts{Sessions: 8, Crowded: 1}); got != want {
					t.Errorf("got %+v, want %+v", got, want)
				}
				w.EndAll()
				synctest.Wait()
			})
		})
	}
}

// counted is a connection that calls close when it is closed.
type counted struct {
	net.Conn

	close func()
}

func (c *counted) Close() error {
	defer c.close()
	return c.Conn.Close()
}

// However fast sessions begin, the number of those that are about to end is bounded.
func TestEndingSessionsAreBounded(t *testing.T) {
	t.Parallel()
	stuck := make(chan struct{})
	w := newMemory(t, Config{Sessions: 16, Hooks: Hooks{Dial: dialAnySocket}})
	r := stuckReplier{stuck}
	for i := range 100 {
		f := flowFrom(alice, 1+i, memoryFrontend)
		w.Datagram(f, []byte("?"), r)
		if s := w.sessions.use(f, 0); s != nil {
			socket, _ := s.upstream.(*fakeSocket)
			socket.incoming <- nil // an answer; r does not return before the test allows it
		}
	}
	if got := len(w.sessions.sockets); got != 18 {
		t.Errorf("sockets: got %d, want 18 (16 and an eighth of that)", got)
	}
	if s := w.CountConnections(); s.Sessions > 18 || s.Crowded == 0 {
		t.Errorf("got %+v, want no more than 18 sessions", s)
	}
	close(stuck)
	eventually(t, "the sessions that were about to end have ended", func() bool { return w.CountConnections().Sessions <= 16 })
	w.Datagram(flowFrom(bob, 1, memoryFrontend), []byte("?"), r)
	if w.sessions.use(flowFrom(bob, 1, memoryFrontend), 0) == nil {
		t.Error("another session: got none, want one")
	}
}

// dialAnySocket is a dialer that returns a new socket each time.
func dialAnySocket(context.Context, Dial) (net.Conn, error) { return newFakeSocket(), nil }

// stuckReplier blocks until a channel is closed.
type stuckReplier struct{ until chan struct{} }

func (r stuckReplier) Reply(Flow, []byte) error {
	<-r.until
	return nil
}

// The number of descriptors bounds all limits, and a quarter is left to the rest of the process.
func TestDescriptorsBound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config                       Config
		connections, sessions, pipes int
	}{
		{Config{Descriptors: 1024}, 192, 227, 64},
		{Config{Descriptors: 1024, Connections: 100, Sessions: 500}, 100, 227, 64},
		{Config{Descriptors: 1 << 20}, 65_536, 65_536, 65_536},
		{Config{Descriptors: 1}, 1, 1, 0},
	} {
		if runtime.GOOS != "linux" {
			c.pipes = 0 // Only Linux moves data between sockets.
		}
		got := c.config.withDefaults()
		if got.Connections != c.connections || got.Sessions != c.sessions || got.pipes() != c.pipes {
			t.Errorf("%+v: got %d connections, %d sessions, %d pipes, want %d, %d, %d",
				c.config, got.Connections, got.Sessions, got.pipes(), c.connections, c.sessions, c.pipes)
		}
	}
	for _, n := range []int{256, 1024, 4096, 65_536, 200_000} {
		c := Config{Descriptors: n}.withDefaults()
		if used := 2*c.Connections + c.Sessions + c.Sessions/endingShare + 2*c.pipes(); used > n-n/4 {
			t.Errorf("%d descriptors: got %d for the engine, want three quarters at most", n, used)
		}
	}
}

// countsOf returns what is counted but for bytes, which depend on the length of the datagrams.
func countsOf(w *fixture) proxy.ConnectionCounts {
	s := w.CountConnections()
	s.BytesIn, s.BytesOut = 0, 0
	return s
}
