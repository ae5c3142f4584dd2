package userspace

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// Backend is a [proxy.Backend] that carries the traffic of Services itself. It
// works until it is closed. Its methods may be called from any goroutine.
type Backend struct {
	options  Options
	renderer *renderer
	kernel   edge
	inner    proxy.Backend
	engine   *engine.Engine
	sockets  *sockets

	mu      sync.Mutex
	phase   phase
	carried proxy.Snapshot
	doors   *opened // nil before they are open
	wg      sync.WaitGroup
}

// phase is how far a backend has come.
type phase uint8

const (
	serving phase = iota
	draining
	closed
)

// edge is all that is written into the kernel.
type edge interface {
	backends.Target[key, value]
	proxy.OperationCounter
	proxy.DriftChecker
	close() error
}

// New gives a backend for the network namespace of the calling thread. Which
// capabilities it needs there depends on the capture; what is missing shows as
// [proxy.ErrUnsupported], here or at the first Apply, which also begins to
// listen. The backend must be closed.
func New(options Options) (*Backend, error) {
	identity, err := options.Identity.Complete()
	if err != nil {
		return nil, fmt.Errorf("userspace: %w", err)
	}
	options.Identity = identity
	options.Families = slices.Clone(options.Families)
	for _, f := range options.Families {
		if f != v1.IPv4Protocol && f != v1.IPv6Protocol {
			return nil, fmt.Errorf("userspace: unknown IP family %q", f)
		}
	}
	if !options.Capture.known() {
		return nil, fmt.Errorf("userspace: there is no %v", options.Capture)
	}
	if options.Port == 0 {
		options.Port = DefaultPort
	}
	s, err := newSockets()
	if err != nil {
		return nil, fmt.Errorf("userspace: %w: %w", proxy.ErrUnsupported, err)
	}
	b := &Backend{options: options, sockets: s}
	b.renderer = &renderer{options: &b.options}
	config := b.options.engineConfig(b.dialer())
	if options.Capture == TPROXY {
		config.Hooks.Link = s.link
	}
	if config.Descriptors, err = descriptorLimit(); err == nil {
		b.engine, err = engine.New(config)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("userspace: %w", err), s.close())
	}
	if err := b.reachKernel(); err != nil {
		b.engine.Close()
		return nil, errors.Join(fmt.Errorf("userspace: %w: %w", proxy.ErrUnsupported, err), s.close())
	}
	return b, nil
}

// descriptorLimit says how many file descriptors the process may have. At its start,
// Go has raised that to what the process may have at most.
func descriptorLimit() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, os.NewSyscallError("getrlimit", err)
	}
	return int(min(limit.Cur, math.MaxInt32)), nil
}

// reachKernel makes the edge to what the capture needs of the kernel.
func (b *Backend) reachKernel() error {
	if b.options.Capture == LocalRoutes {
		l, err := newLookup()
		if err != nil {
			return err
		}
		b.kernel = &local{renderer: b.renderer, routes: b.localRoutes(), lookup: l, have: map[key]value{}}
		b.inner = backends.New(b.renderer.renderLocal, backends.Target[key, value](b.kernel))
		return nil
	}
	conn, err := nfnetlink.Open()
	if err != nil {
		return err
	}
	monitor, err := conn.Monitor(b.options.Identity.Name)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	b.kernel = &kernel{renderer: b.renderer, conn: conn, monitor: monitor, transact: monitor.Commit, routes: b.way()}
	b.inner = backends.New(b.renderer.render, backends.Target[key, value](b.kernel))
	return nil
}

func (b *Backend) localRoutes() *localRoutes {
	return &localRoutes{handle: b.sockets.ns.Netlink(), number: bits.TrailingZeros32(b.options.Identity.Mark)}
}

// way gives what routing must know for the capture.
func (b *Backend) way() way {
	byMark := &routes{handle: b.sockets.ns.Netlink(), mark: b.options.Identity.Mark}
	toDoors := &doorRoutes{localRoutes: b.localRoutes(), options: &b.options}
	if b.options.Capture == Redirect {
		return instead{toDoors, []way{byMark}}
	}
	return together{byMark, toDoors}
}

// Apply implements [proxy.Backend]. What is new can be carried before the kernel
// sends any of it here.
func (b *Backend) Apply(ctx context.Context, old, new proxy.Snapshot) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase != serving {
		return errClosed()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := b.open(ctx); err != nil {
		return err
	}
	before := b.carried
	b.carry(new)
	err := b.inner.Apply(ctx, old, new)
	if failed, ok := errors.AsType[proxy.PortErrors](err); ok {
		var names []proxy.ServicePortName
		for n := range failed {
			names = append(names, n)
		}
		b.carry(new.Revert(before, names...))
	} else if err != nil && !errors.Is(err, proxy.ErrDataplaneLost) {
		b.carry(before)
	}
	return err
}

func (b *Backend) carry(s proxy.Snapshot) {
	if b.options.Capture != TPROXY {
		b.sockets.captured.follow(b.carried, s)
	}
	b.carried = s
	b.engine.Apply(s)
}

// Cleanup implements [proxy.Backend]. Connections that were carried are reset.
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
	err := b.shut()
	b.engine.EndAll()
	return err
}

// errClosed is that of a backend that serves no more.
func errClosed() error { return fmt.Errorf("userspace: %w", net.ErrClosed) }

// shut closes the doors. Connections that have come in by them live on.
func (b *Backend) shut() error {
	if b.doors == nil {
		return nil
	}
	err := b.doors.close()
	b.doors = nil
	return err
}

// Drain stops accepting clients, and waits until the established connections have ended.
// If ctx ends first, it returns an error; Close then resets the connections that are left.
// Drain is for processes that have a successor: new connections are dropped until another
// process of this identity serves, which may start at once. Drain does not wait for
// sessions of UDP; they end after their idle time. After Drain, Apply and Cleanup return
// [net.ErrClosed].
func (b *Backend) Drain(ctx context.Context) error {
	if err := b.shutDoors(); err != nil {
		return err
	}
	// A connection that was accepted may still wait for a slot.
	come := make(chan struct{})
	go func() {
		defer close(come)
		b.wg.Wait()
	}()
	select {
	case <-come:
	case <-ctx.Done():
		return fmt.Errorf("userspace: draining: %w", ctx.Err())
	}
	if err := b.engine.AwaitIdle(ctx); err != nil {
		return fmt.Errorf("userspace: draining: %w", err)
	}
	return nil
}

// shutDoors closes what clients come in by, and nothing that serves them.
func (b *Backend) shutDoors() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase == closed {
		return errClosed()
	}
	b.phase = draining
	if b.doors == nil {
		return nil
	}
	err := closeAll(b.doors.listeners)
	b.doors.listeners = nil
	return err
}

// Close ends everything that the backend carries. What it has programmed stays,
// so that traffic to Services is dropped until another one takes over, and
// leaks nowhere; only Cleanup before it, or that of another backend, removes it. A closed
// backend cannot be used any more: the error is [net.ErrClosed]. To close it again is none.
func (b *Backend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase == closed {
		return nil
	}
	b.phase = closed
	err := b.shut()
	b.engine.Close()
	b.wg.Wait()
	return errors.Join(err, b.kernel.close(), b.sockets.close())
}

// Operations implements [proxy.OperationCounter]: objects of the kernel that were
// written or removed. Endpoints are none of them.
func (b *Backend) Operations() uint64 { return b.kernel.Operations() }

// Drifted implements [proxy.DriftChecker].
func (b *Backend) Drifted(ctx context.Context) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	inner, can := b.inner.(proxy.DriftChecker)
	return b.phase != serving || !can || inner.Drifted(ctx)
}

// WaitDrift implements [proxy.DriftChecker].
func (b *Backend) WaitDrift(ctx context.Context) error { return b.kernel.WaitDrift(ctx) }

// Stats gives the numbers of what is carried.
func (b *Backend) Stats() Stats { return Stats(b.engine.Stats()) }
