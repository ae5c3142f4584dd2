package hns

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestEventOf(t *testing.T) {
	for code, want := range map[uint32]hcn.Event{
		0: 0, 1: 0, 2: hcn.NetworksChanged, 3: 0, 4: hcn.NetworksChanged, 5: 0, 9: hcn.EndpointsChanged, 0x10: hcn.EndpointsChanged,
		0x11: 0, 0x01000000: hcn.Disconnected, 0xf0000000: 0,
	} {
		if got := eventOf(code); got != want {
			t.Errorf("%#x: got %d, want %d", code, got, want)
		}
	}
}

func (m *machine) wants(t *testing.T, want hcn.Event) {
	t.Helper()
	if got, err := m.Wait(t.Context()); got != want || err != nil {
		t.Fatalf("got event %d, %v, want %d", got, err, want)
	}
}

// wantsReconnect waits until the client has registered again, and has said that something may have
// been missed: with the event itself, or after it if it came while the client waited.
func (m *machine) wantsReconnect(t *testing.T) {
	t.Helper()
	m.wants(t, hcn.Disconnected)
	m.events.mu.Lock()
	missed := m.events.missed
	m.events.mu.Unlock()
	if missed {
		m.wants(t, hcn.Disconnected)
	}
}

func TestWait(t *testing.T) {
	m := newMachine(t)
	if _, err := m.sim.AddEndpoint(m.networkID, "pod", addr("10.1.0.9")); err != nil {
		t.Fatal(err)
	}
	m.wants(t, hcn.EndpointsChanged)
	m.sim.AddNetwork(hcn.Network{Name: "cbr1"})
	m.wants(t, hcn.NetworksChanged)
	m.sim.Notify(hcn.Disconnected)
	m.wantsReconnect(t)
	m.sim.Notify(hcn.EndpointsChanged)
	m.wants(t, hcn.EndpointsChanged)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: got %v, want %v", err, context.Canceled)
	}
}

// Several events are one, of which the greatest counts, and the next call waits for others.
func TestEventsAreMerged(t *testing.T) {
	e := newEvents()
	for _, code := range []uint32{9, 2, 9} {
		e.notify(code)
	}
	if got, err := e.wait(t.Context()); got != hcn.NetworksChanged || err != nil {
		t.Errorf("got %d, %v, want %d", got, err, hcn.NetworksChanged)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := e.wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %d, %v, want %v", got, err, context.Canceled)
	}
}

func TestServiceRestarts(t *testing.T) {
	m := newMachine(t)
	m.setDown(true)
	m.wants(t, hcn.Disconnected)
	for what, err := range map[string]error{
		"waiting": second(m.Wait(t.Context())), "listing": second(m.LoadBalancerIDs(t.Context())), "version": second(m.Version(t.Context())),
	} {
		if !errors.Is(err, hcn.ErrUnavailable) {
			t.Errorf("%s: got %v, want %v", what, err, hcn.ErrUnavailable)
		}
	}
	m.setDown(false)
	m.wants(t, hcn.Disconnected)
	m.sim.Notify(hcn.NetworksChanged)
	m.wants(t, hcn.NetworksChanged)
	if err := second(m.LoadBalancerIDs(t.Context())); err != nil {
		t.Error(err)
	}
}

// restless is a library whose HNS ends during the first registration, or never answers it.
type restless struct {
	library
	notify        func(code uint32)
	hangs         chan struct{} // nil for none
	registrations int
}

func (r *restless) register() (uintptr, error) {
	if r.registrations++; r.registrations == 1 {
		r.notify(0x01000000)
	}
	if r.hangs != nil {
		<-r.hangs
	}
	return uintptr(r.registrations), nil
}

func (*restless) unregister(uintptr) error { return nil }

// If HNS ends while it is asked for notifications, the next Wait asks again. If it does not answer, who
// opens the client is not kept waiting.
func TestRegistrationFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &restless{}
		open := func(notify func(uint32)) (library, error) {
			r.notify = notify
			return r, nil
		}
		c, err := newClient(open)
		testenv.NoError(t, err)
		if e, err := c.Wait(t.Context()); e != hcn.Disconnected || err != nil {
			t.Errorf("got event %d, %v, want %d", e, err, hcn.Disconnected)
		}
		if r.registrations != 2 {
			t.Errorf("got %d registrations, want 2", r.registrations)
		}
		r = &restless{hangs: make(chan struct{})}
		start := time.Now()
		if _, err := newClient(open); err != nil || time.Since(start) > openLimit {
			t.Errorf("HNS hangs: got error %v after %v, want a client within %v", err, time.Since(start), openLimit)
		}
		close(r.hangs)
	})
}
