package userspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/backends/userspace/internal/addresses"
	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// Backend is a [proxy.Backend] that carries the traffic of Services itself. It must be
// closed. Its methods may be called from several goroutines at once.
type Backend struct {
	capture capture
	inner   proxy.Backend // over the capture
	engine  *engine.Engine

	mu      sync.Mutex
	phase   phase
	carried proxy.Snapshot // the one that the engine serves
}

// phase is the phase of a backend's life.
type phase uint8

const (
	serving phase = iota
	draining
	closed
)

// capture delivers packets to Services to its listeners.
type capture interface {
	listeners
	// ServeBy has the engine serve the listeners.
	ServeBy(e *engine.Engine)
	// Configure adds how the engine reaches endpoints.
	Configure(config *engine.Config)
}

// listeners accept the clients.
type listeners interface {
	// Open opens the listeners that all Services share, unless they are open. If everything is
	// applied again, it finds out what the node can serve.
	Open(ctx context.Context, again bool) error
	// StopAccepting closes the listeners for new clients, and none that existing connections
	// need. CloseListeners closes all. Connections and sessions stay open.
	StopAccepting() error
	CloseListeners() error
}

// New returns a backend for this host; on Linux, for the network namespace of the calling thread.
// Which capabilities it needs there depends on the capture; if one is missing, New or the first
// Apply fails with [proxy.ErrUnsupported]. The first Apply opens the listeners. The backend
// must be closed.
func New(options Options) (*Backend, error) {
	b, err := options.open()
	if err != nil {
		return nil, fmt.Errorf("userspace: %w", err)
	}
	return b, nil
}

// complete checks the options, and fills in defaults.
func (o *Options) complete() (err error) {
	if o.Identity, err = o.Identity.Complete(kinds.Userspace.Defaults()); err != nil {
		return err
	}
	all := ipaddr.Families()
	for _, f := range o.Families {
		if !slices.Contains(all[:], f) {
			return fmt.Errorf("unknown IP family %q", f)
		}
	}
	if o.Families = slices.Clone(o.Families); len(o.Families) == 0 {
		o.Families = all[:]
	}
	o.Capture = cmp.Or(o.Capture, systemCapture)
	if !o.Capture.known() {
		return fmt.Errorf("unknown %v", o.Capture)
	}
	if o.Timeouts.Wake > 0 && o.Hooks.FirstConnection == nil {
		return fmt.Errorf("Timeouts.Wake is %v, but nothing waits without Hooks.FirstConnection", o.Timeouts.Wake)
	}
	o.Port = cmp.Or(o.Port, DefaultPort)
	return nil
}

// open returns a backend with these options.
func (o *Options) open() (*Backend, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	descriptors, err := descriptorLimit()
	if err != nil {
		return nil, err
	}
	switch o.Capture {
	case Addresses:
		return o.openAddresses(descriptors)
	case Loopback:
		return o.openLoopback(descriptors)
	default:
		return o.openSystem(descriptors)
	}
}

// start returns a backend over a capture, with an engine. It closes the inner backend if it fails.
func (o *Options) start(c capture, inner proxy.Backend, descriptors int) (*Backend, error) {
	config := engine.Config{Descriptors: descriptors}
	b := &Backend{capture: c, inner: inner}
	o.configure(&config)
	c.Configure(&config)
	var err error
	if b.engine, err = engine.New(config); err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	c.ServeBy(b.engine)
	return b, nil
}

// Apply implements [proxy.Backend]. The engine serves the new snapshot before the kernel
// captures packets by it.
func (b *Backend) Apply(ctx context.Context, old, new proxy.Snapshot) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase != serving {
		return errClosed()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := b.capture.Open(ctx, old.IsZero()); err != nil {
		return err
	}
	before := b.carried
	b.carry(new)
	err := b.inner.Apply(ctx, old, new)
	// After ErrDataplaneLost the kernel may capture by new, so the engine goes on serving it.
	if err != nil && !errors.Is(err, proxy.ErrDataplaneLost) {
		b.carry(before.Achieved(new, err))
	}
	return err
}

func (b *Backend) carry(s proxy.Snapshot) {
	b.carried = s
	b.engine.Apply(s)
}

// Cleanup implements [proxy.Backend]. It resets all connections.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase != serving {
		return errClosed()
	}
	if err := b.inner.Cleanup(ctx); err != nil {
		return err
	}
	b.carry(proxy.Snapshot{})
	err := b.capture.CloseListeners()
	b.engine.EndAll()
	return err
}

// errClosed returns the error of a backend that drains or is closed.
func errClosed() error { return fmt.Errorf("userspace: %w", net.ErrClosed) }

// Drain stops accepting clients, and waits until the established connections have ended.
// If ctx ends first, it returns an error; Close then resets the remaining connections.
// Drain is for processes that have a successor: new connections are dropped until another
// process with this identity serves, which may start at once. Drain does not wait for
// sessions of UDP; they end after their idle time. After Drain, Apply and Cleanup return
// [net.ErrClosed].
func (b *Backend) Drain(ctx context.Context) error {
	if err := b.stopAccepting(); err != nil {
		return err
	}
	if err := b.engine.AwaitIdle(ctx); err != nil {
		return fmt.Errorf("userspace: draining: %w", err)
	}
	return nil
}

// stopAccepting closes the sockets that accept clients, and none that their connections need.
func (b *Backend) stopAccepting() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase == closed {
		return errClosed()
	}
	b.phase = draining
	return b.capture.StopAccepting()
}

// Close ends all connections and sessions. The kernel objects stay, so that traffic to
// Services is dropped, and not forwarded elsewhere, until another backend takes over. Call
// Cleanup before Close to remove them; Cleanup of another backend does so, too. After Close,
// Apply, Cleanup and Drain return [net.ErrClosed]; closing again is no error.
func (b *Backend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase == closed {
		return nil
	}
	b.phase = closed
	err := b.capture.CloseListeners()
	b.engine.Close()
	return errors.Join(err, b.inner.Close())
}

// Abilities implements [proxy.Backend]. Operations are kernel objects that were written or removed;
// endpoints are none. With the capture [Addresses], CheckNode returns node ports at which another program
// listens, and addresses that cannot be removed.
func (b *Backend) Abilities() proxy.Abilities {
	a := b.inner.Abilities()
	drifted, waitDrift := a.Drifted, a.WaitDrift
	a.Drifted = func(ctx context.Context) bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.phase != serving || drifted(ctx)
	}
	if waitDrift != nil {
		a.WaitDrift = func(ctx context.Context) error {
			for {
				// The capture may have noticed what an Apply did that is not yet done: Drifted
				// waits for it.
				if err := waitDrift(ctx); err != nil || a.Drifted(ctx) {
					return err
				}
			}
		}
	}
	a.CountConnections, a.Drain = b.engine.CountConnections, b.Drain
	return a
}

// Listeners returns how many sockets the capture [Loopback] has at loopback addresses of an IP
// family; 0 with other captures.
func (b *Backend) Listeners(family v1.IPFamily) int {
	l, is := b.capture.(*addresses.Loopback)
	if !is {
		return 0
	}
	return l.Listening(family)
}
