package engine

import (
	"context"
	"errors"
	"math"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// dialing returns a fixture in which the n-th attempt to reach an endpoint fails with try(n).
func dialing(t *testing.T, protocol v1.Protocol, try func(n int) error) (w *fixture, tries *int) {
	t.Helper()
	tries = new(int)
	w = newFixture(t, Config{Hooks: Hooks{Dial: func(context.Context, Dial) (net.Conn, error) {
		*tries++
		if err := try(*tries); err != nil {
			return nil, err
		}
		return newFakeSocket(), nil
	}}}, protocol)
	w.serveAt(memoryFrontend, memoryEndpoint)
	return w, tries
}

// Only failures of the endpoint are recorded; the kind of failure decides how many attempts
// are made.
func TestFailuresOfEndpoints(t *testing.T) {
	t.Parallel()
	always := func(err error) func(int) error { return func(int) error { return err } }
	for name, c := range map[string]struct {
		protocol v1.Protocol
		try      func(n int) error
		tries    int
		recorded bool
	}{
		"refused":              {v1.ProtocolTCP, always(syscall.ECONNREFUSED), 1, true},
		"silent":               {v1.ProtocolTCP, always(context.DeadlineExceeded), 4, true},
		"no port":              {v1.ProtocolTCP, always(ErrNoPort), 1, false},
		"no descriptor":        {v1.ProtocolTCP, always(syscall.EMFILE), 1, false},
		"refused, datagrams":   {v1.ProtocolUDP, always(syscall.ENETUNREACH), 1, false},
		"reached":              {v1.ProtocolTCP, always(nil), 1, false},
		"reached, by datagram": {v1.ProtocolUDP, always(nil), 1, false},
		"silent, then refused": {v1.ProtocolTCP, func(n int) error {
			if n == 1 {
				return context.DeadlineExceeded
			}
			return syscall.ECONNREFUSED
		}, 2, true},
	} {
		w, tries := dialing(t, c.protocol, c.try)
		d := w.decide(Flow{Protocol: c.protocol, Client: memoryClient, Frontend: memoryFrontend})
		if conn, _, err := w.connect(t.Context(), &d); err == nil {
			shut(conn)
		}
		if got := w.failures.count.Load() != 0; got != c.recorded || *tries != c.tries {
			t.Errorf("%s: got %d attempts and recorded %v, want %d and %v", name, *tries, got, c.tries, c.recorded)
		}
	}
}

// A shortage of the node's own resources concerns all endpoints: no other one is tried.
func TestShortageEndsTries(t *testing.T) {
	t.Parallel()
	w, tries := dialing(t, v1.ProtocolTCP, func(int) error { return syscall.EMFILE })
	w.serveAt(memoryFrontend, memoryEndpoint, netip.MustParseAddrPort("10.1.0.2:80"))
	d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
	if _, _, err := w.connect(t.Context(), &d); !errors.Is(err, errNoResources) || *tries != 1 {
		t.Errorf("got error %v after %d attempts, want %v after 1", err, *tries, errNoResources)
	}
}

// A connection shows that the endpoint works: its failures are removed.
func TestConnectionsClearFailures(t *testing.T) {
	t.Parallel()
	w, _ := dialing(t, v1.ProtocolTCP, func(int) error { return nil })
	w.failures.recordFailure(webAt(), memoryClient.Addr())
	d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
	if _, _, err := w.connect(t.Context(), &d); err != nil || w.failures.count.Load() != 0 {
		t.Errorf("got error %v and %d failures, want none", err, w.failures.count.Load())
	}
}

// Closing the engine records no failure of an endpoint, and ends all attempts.
func TestCloseRecordsNoFailure(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	w, tries := dialing(t, v1.ProtocolTCP, func(int) error {
		cancel()
		return context.Canceled
	})
	w.serveAt(memoryFrontend, memoryEndpoint, netip.MustParseAddrPort("10.1.0.2:80"))
	d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
	if _, _, err := w.connect(ctx, &d); !errors.Is(err, context.Canceled) || *tries != 1 || w.failures.count.Load() != 0 {
		t.Errorf("got error %v, %d attempts and %d failures, want %v, 1 and 0", err, *tries, w.failures.count.Load(), context.Canceled)
	}
}

// A client with session affinity changes its endpoint when that was removed, or when the
// client itself could not reach it.
func TestWhenAffinityEnds(t *testing.T) {
	t.Parallel()
	other := netip.MustParseAddrPort("10.1.0.2:80")
	for name, c := range map[string]struct {
		remembered, want netip.AddrPort
		failed           []netip.Addr
	}{
		"no failure":            {memoryEndpoint, memoryEndpoint, nil},
		"endpoint removed":      {netip.MustParseAddrPort("10.1.0.9:80"), other, nil},
		"failure of the client": {memoryEndpoint, other, []netip.Addr{memoryClient.Addr()}},
		"failures of others":    {memoryEndpoint, memoryEndpoint, []netip.Addr{alice, bob}},
	} {
		w := newFixture(t, Config{Hooks: Hooks{
			Pick: pickIfThere(other),
			Dial: func(context.Context, Dial) (net.Conn, error) { return newFakeSocket(), nil },
		}}, v1.ProtocolTCP).withAffinity(time.Hour)
		w.serveAt(memoryFrontend, memoryEndpoint, other)
		d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
		d.service.table(d.route.Pool).Put(memoryClient.Addr(), c.remembered)
		for _, from := range c.failed {
			w.failures.recordFailure(webAt(), from)
		}
		if _, to, err := w.connect(t.Context(), &d); err != nil || to.Addr != c.want {
			t.Errorf("%s: got %v and error %v, want %v", name, to, err, c.want)
		}
	}
}

// A connection waits for the first endpoint until Timeouts.Wake, and is denied if the Service
// then does not allow the client.
func TestHowWaitingEnds(t *testing.T) {
	for name, c := range map[string]struct {
		then func(w *fixture, p proxy.ServicePort)
		want error
		took time.Duration
	}{
		"no endpoint": {func(*fixture, proxy.ServicePort) {}, context.DeadlineExceeded, 30 * time.Second},
		"restricted": {func(w *fixture, p proxy.ServicePort) {
			p.Frontends = []proxy.Frontend{{Addr: memoryFrontend, Restricted: true}}
			w.Apply(proxy.NewSnapshot(&proxy.Node{}, &p))
		}, errDenied, time.Second},
		"an endpoint": {func(w *fixture, _ proxy.ServicePort) { w.serveAt(memoryFrontend, memoryEndpoint) }, nil, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			w := newFixture(t, Config{Hooks: Hooks{FirstConnection: func(Flow, proxy.ServicePortName) { calls++ }}}, v1.ProtocolTCP)
			w.serveAt(memoryFrontend)
			d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
			start := time.Now()
			time.AfterFunc(time.Second, func() { c.then(w, *w.port) })
			_, err := w.awaitEndpoint(t.Context(), d)
			if took := time.Since(start); !errors.Is(err, c.want) || took != c.took || calls != 1 {
				t.Errorf("%s: got error %v after %v and %d calls, want %v after %v and 1 call", name, err, took, calls, c.want, c.took)
			}
			d.route.Action = proxy.Drop
			if _, err := w.awaitEndpoint(t.Context(), d); !errors.Is(err, errDenied) || calls != 1 {
				t.Errorf("a dropped flow: got error %v and %d calls, want %v and no further call", err, calls, errDenied)
			}
		})
	}
}

// The defaults are as documented, including the number of attempts.
func TestDefaults(t *testing.T) {
	t.Parallel()
	want := Config{
		Timeouts: Timeouts{
			Dial:    []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second},
			Suspect: 5 * time.Second, Idle: 2 * time.Hour, HalfClosed: 5 * time.Minute, Drain: 10 * time.Minute,
			Session: time.Minute, Wake: 30 * time.Second,
		},
		Connections: 65_536, Sessions: 65_536,
	}
	for name, c := range map[string]Config{"zero": {}, "empty Timeouts.Dial": {Timeouts: Timeouts{Dial: []time.Duration{}}}} {
		got := c.withDefaults()
		got.Hooks = Hooks{}
		testenv.Same(t, want, got, "%s", name)
	}
}

// Limits may be as large as an int.
func TestLargestLimits(t *testing.T) {
	t.Parallel()
	e, err := New(Config{Connections: math.MaxInt, Sessions: math.MaxInt})
	testenv.NoError(t, err)
	e.Close()
}

// If Hooks.Pick returns an invalid index, the choice is random, and does not follow the round.
func TestInvalidPicks(t *testing.T) {
	t.Parallel()
	for _, choice := range []int{-1, 3} {
		w := newFixture(t, Config{Hooks: Hooks{
			Dial: func(context.Context, Dial) (net.Conn, error) { return newFakeSocket(), nil },
			Pick: func(Flow, []*endpoints.Endpoint) int { return choice },
		}}, v1.ProtocolTCP)
		w.serveAt(memoryFrontend, memoryPool(1, 2, 3)...)
		count, inTurn, last := map[int]int{}, 0, 0
		for range 300 {
			n := w.chosen(t, "10.0.0.9:1")
			if count[n]++; n == last%3+1 {
				inTurn++
			}
			last = n
		}
		if len(count) != 3 || inTurn > 200 {
			t.Errorf("Pick returned %d: got choices %v, %d of 300 in turn; want all of 3, and about 100", choice, count, inTurn)
		}
	}
}
