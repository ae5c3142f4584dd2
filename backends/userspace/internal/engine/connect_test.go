package engine

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// dialling is a world whose tries to reach endpoints go as a test says.
func dialling(t *testing.T, protocol v1.Protocol, try func(n int) error) (w *world, tries *int) {
	t.Helper()
	tries = new(int)
	w = newWorld(t, Config{Hooks: Hooks{Dial: func(context.Context, Dial) (net.Conn, error) {
		*tries++
		if err := try(*tries); err != nil {
			return nil, err
		}
		return newScripted(), nil
	}}}, protocol)
	w.serveAt(memoryFrontend, memoryEndpoint)
	return w, tries
}

// Only failures of the endpoint make it a suspect; the kind of failure decides how often it
// is tried.
func TestFailuresOfEndpoints(t *testing.T) {
	always := func(err error) func(int) error { return func(int) error { return err } }
	for name, c := range map[string]struct {
		protocol v1.Protocol
		try      func(n int) error
		tries    int
		suspect  bool
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
		w, tries := dialling(t, c.protocol, c.try)
		d := w.decide(Flow{Protocol: c.protocol, Client: memoryClient, Frontend: memoryFrontend})
		if conn, _, err := w.connect(t.Context(), &d); err == nil {
			shut(conn)
		}
		if got := w.suspects.count.Load() != 0; got != c.suspect || *tries != c.tries {
			t.Errorf("%s: got %d tries, and a suspect: %v; want %d and %v", name, *tries, got, c.tries, c.suspect)
		}
	}
}

// What this side lacks, it lacks for all endpoints.
func TestShortageEndsTries(t *testing.T) {
	w, tries := dialling(t, v1.ProtocolTCP, func(int) error { return syscall.EMFILE })
	w.serveAt(memoryFrontend, memoryEndpoint, netip.MustParseAddrPort("10.1.0.2:80"))
	d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
	if _, _, err := w.connect(t.Context(), &d); !errors.Is(err, errNoResources) || *tries != 1 {
		t.Errorf("got error %v after %d tries, want %v after one", err, *tries, errNoResources)
	}
}

// A connection proves that an endpoint is there.
func TestConnectionsAcquit(t *testing.T) {
	w, _ := dialling(t, v1.ProtocolTCP, func(int) error { return nil })
	w.suspects.accuse(webAt(), memoryClient.Addr())
	d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
	if _, _, err := w.connect(t.Context(), &d); err != nil || w.suspects.count.Load() != 0 {
		t.Errorf("got error %v and %d suspects, want none", err, w.suspects.count.Load())
	}
}

// Closing the engine records no failure of an endpoint, and ends all tries.
func TestCloseRecordsNoFailure(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	w, tries := dialling(t, v1.ProtocolTCP, func(int) error {
		cancel()
		return context.Canceled
	})
	w.serveAt(memoryFrontend, memoryEndpoint, netip.MustParseAddrPort("10.1.0.2:80"))
	d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
	if _, _, err := w.connect(ctx, &d); !errors.Is(err, context.Canceled) || *tries != 1 || w.suspects.count.Load() != 0 {
		t.Errorf("got error %v, %d tries and %d suspects, want %v, one try and no suspect", err, *tries, w.suspects.count.Load(), context.Canceled)
	}
}

// Who sticks to an endpoint leaves it when it is gone, or when he could not reach it
// himself.
func TestWhenStickingEnds(t *testing.T) {
	other := netip.MustParseAddrPort("10.1.0.2:80")
	for name, c := range map[string]struct {
		sticks, want netip.AddrPort
		failed       bool
	}{
		"all is well":          {memoryEndpoint, memoryEndpoint, false},
		"it is gone":           {netip.MustParseAddrPort("10.1.0.9:80"), other, false},
		"he has failed before": {memoryEndpoint, other, true},
	} {
		w := newWorld(t, Config{Hooks: Hooks{
			Pick: pickIfThere(other),
			Dial: func(context.Context, Dial) (net.Conn, error) { return newScripted(), nil },
		}}, v1.ProtocolTCP).sticky(time.Hour)
		w.serveAt(memoryFrontend, memoryEndpoint, other)
		d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
		d.service.table(d.pool).Put(memoryClient.Addr(), c.sticks)
		if c.failed {
			w.suspects.accuse(webAt(), memoryClient.Addr())
		}
		if _, to, err := w.connect(t.Context(), &d); err != nil || to.Addr != c.want {
			t.Errorf("%s: got %v and error %v, want %v", name, to, err, c.want)
		}
	}
}

// A connection that waits for the first endpoint waits for so long, and is denied if
// the Service turns out to be closed to it.
func TestHowWaitingEnds(t *testing.T) {
	for name, c := range map[string]struct {
		then func(w *world, p proxy.ServicePort)
		want error
		took time.Duration
	}{
		"nothing comes": {func(*world, proxy.ServicePort) {}, context.DeadlineExceeded, 30 * time.Second},
		"it is closed": {func(w *world, p proxy.ServicePort) {
			p.Frontends = []proxy.Frontend{{Addr: memoryFrontend, Restricted: true}}
			w.Apply(proxy.NewSnapshot(&proxy.Node{}, &p))
		}, errDenied, time.Second},
		"an endpoint": {func(w *world, _ proxy.ServicePort) { w.serveAt(memoryFrontend, memoryEndpoint) }, nil, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			w := newWorld(t, Config{Hooks: Hooks{FirstConnection: func(Flow, proxy.ServicePortName) { calls++ }}}, v1.ProtocolTCP)
			w.serveAt(memoryFrontend)
			d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
			start := time.Now()
			time.AfterFunc(time.Second, func() { c.then(w, *w.port) })
			_, err := w.awaken(t.Context(), d)
			if took := time.Since(start); !errors.Is(err, c.want) || took != c.took || calls != 1 {
				t.Errorf("%s: got error %v after %v and %d calls, want %v after %v and one call", name, err, took, calls, c.want, c.took)
			}
			d.action = proxy.Drop
			if _, err := w.awaken(t.Context(), d); !errors.Is(err, errDenied) || calls != 1 {
				t.Errorf("what is dropped: got error %v and %d calls, want %v and no other call", err, calls, errDenied)
			}
		})
	}
}
