package hns

import (
	"context"
	"sync"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
)

// events is the notifications that nobody has waited for yet.
type events struct {
	came chan struct{} // has an element if pending is not 0

	mu           sync.Mutex
	pending      hcn.Event
	registration uintptr
	registered   bool
	missed       bool // notifications may have come while nothing was registered
	ended        int  // how often HNS has ended
}

func newEvents() *events { return &events{came: make(chan struct{}, 1)} }

// notify takes a notification. It never waits for HNS.
func (e *events) notify(code uint32) {
	event := eventOf(code)
	if event == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if event == hcn.Disconnected {
		e.registered, e.missed = false, true
		e.ended++
	}
	e.add(event)
}

func (e *events) add(event hcn.Event) {
	e.pending = max(e.pending, event)
	select {
	case e.came <- struct{}{}:
	default:
	}
}

// eventOf returns what a notification of HCN_NOTIFICATIONS says, 0 if it is none of hcn. A network
// notifies before and after it is created or deleted; only the latter counts.
func eventOf(code uint32) hcn.Event {
	switch code {
	case 0x2, 0x4: // NetworkCreate, NetworkDelete
		return hcn.NetworksChanged
	case 0x9, 0x10: // NetworkEndpointAttached, NetworkEndpointDetached
		return hcn.EndpointsChanged
	case 0x01000000: // ServiceDisconnect
		return hcn.Disconnected
	}
	return 0
}

// register registers for notifications, unless it was done and HNS has not ended since. If HNS ends
// meanwhile, that does not count: the next call registers again.
func (e *events) register(l library) error {
	e.mu.Lock()
	registered, old, before := e.registered, e.registration, e.ended
	e.mu.Unlock()
	if registered {
		return nil
	}
	if old != 0 {
		// It ended with HNS; this frees what it has in this process.
		_ = l.unregister(old)
	}
	registration, err := l.register()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.registration, e.registered = registration, err == nil && e.ended == before
	if e.registered && e.missed {
		e.add(hcn.Disconnected)
	}
	e.missed = !e.registered
	return err
}

func (e *events) unregister(l library) error {
	e.mu.Lock()
	old := e.registration
	e.registration, e.registered = 0, false
	e.mu.Unlock()
	if old == 0 {
		return nil
	}
	return l.unregister(old)
}

// wait returns the greatest of the events that came.
func (e *events) wait(ctx context.Context) (hcn.Event, error) {
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-e.came:
		return e.clear(), nil
	}
}

// take returns the greatest of the events that came, 0 if none did.
func (e *events) take() hcn.Event {
	select {
	case <-e.came:
		return e.clear()
	default:
		return 0
	}
}

func (e *events) clear() hcn.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	event := e.pending
	e.pending = 0
	return event
}
