package addresses

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/internal/journal"
	"github.com/vipkit/vipkit/proxy"
)

// Manager changes the addresses of an interface. Its methods are not called at the same time. Errors
// wrap [backends.ErrUnavailable] if no address can be changed at present: the interface or a privilege
// is missing.
type Manager interface {
	// Addresses returns the addresses of all interfaces of the host.
	Addresses(ctx context.Context) ([]netip.Addr, error)
	// Add adds an address, with a prefix of its own, to the interface. The error wraps
	// [fs.ErrExist] if the host has the address already.
	Add(ctx context.Context, a netip.Addr) error
	// Remove removes an address from the interface.
	Remove(ctx context.Context, a netip.Addr) error
}

// Serving says what a capture serves, and where.
type Serving struct {
	// Sockets are closed with the capture.
	Sockets *host.Sockets
	// Families are the IP families to serve.
	Families []v1.IPFamily
	// AwaitEndpoints says that connections to service ports without endpoints are
	// accepted, and wait for an endpoint.
	AwaitEndpoints bool
}

func (s *Serving) serves(f v1.IPFamily) bool { return slices.Contains(s.Families, f) }

// Config configures a [Capture].
type Config struct {
	Serving

	Manager Manager
	// State is the path of the file with the addresses that were added.
	State string
	// Usable is how long an address that was added may take until sockets can listen at it.
	Usable time.Duration
}

// Capture is a [backends.Target]: addresses on an interface, and sockets that listen at them. Its
// methods are not called at the same time, except Listening, CheckNode and the methods of the dialer.
type Capture struct {
	Config
	sockets

	// own are the addresses that the backend has added. loaded says that the addresses of the file are among them.
	own    *journal.Set
	loaded bool
	// host are the addresses of the host when they were listed last. It takes long to list them, and each
	// datagram that might come from a node port asks for them.
	host   atomic.Pointer[map[netip.Addr]bool]
	needed map[netip.Addr]bool // the addresses of service ports
	// refused has an error for each [Key] of a node port at which another program listens, or which the system
	// denies, and of an address that could not be removed. Service ports are served at all other frontends.
	refused sync.Map
}

// New returns a capture. Its method ServeBy must be called before it is used.
func New(c Config) *Capture {
	t := &Capture{Config: c, own: journal.New(c.State), needed: map[netip.Addr]bool{}}
	t.host.Store(&map[netip.Addr]bool{})
	t.sockets = sockets{isLocal: t.isAddress, listeners: map[Key]io.Closer{}, namespace: c.Sockets}
	return t
}

// Configure adds how the engine reaches endpoints.
func (c *Capture) Configure(config *engine.Config) {
	c.sockets.Configure(config)
	config.Captured = true
}

// isAddress reports whether the host had an address when they were listed last.
func (c *Capture) isAddress(a netip.Addr) bool { return (*c.host.Load())[a] }

// Abilities implements [backends.Target]. It cannot wait for drift: resyncs check the addresses.
func (c *Capture) Abilities() backends.TargetAbilities[Key, Value] {
	return backends.TargetAbilities[Key, Value]{
		Abilities: proxy.Abilities{Operations: c.ops.Load, Drifted: c.Drifted, CheckNode: c.CheckNode},
		Check:     c.Check, Cleanup: c.Cleanup, Close: c.namespace.Close,
	}
}

// Check is Check of [backends.TargetAbilities].
func (c *Capture) Check(_ backends.Env, port *proxy.ServicePort) error {
	if !c.serves(port.Name.Family) {
		return nil
	}
	return host.CheckProtocol(port)
}

// present returns the addresses of the host. The caller must not change the map.
func (c *Capture) present(ctx context.Context) (map[netip.Addr]bool, error) {
	list, err := c.Manager.Addresses(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of the node: %w", err)
	}
	all := make(map[netip.Addr]bool, len(list))
	for _, a := range list {
		all[a.Unmap().WithZone("")] = true
	}
	c.host.Store(&all)
	return all, nil
}

// List implements [backends.Target]. An address of its own stays needed unless an operation removes
// it.
func (c *Capture) List(ctx context.Context) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		present, err := c.load(ctx)
		if err != nil {
			yield(Object{}, fmt.Errorf("userspace: %w", err))
			return
		}
		c.forget(present)
		for a := range c.added {
			c.needed[a] = true
		}
		maps.DeleteFunc(c.needed, func(a netip.Addr, _ bool) bool { return !present[a] })
		for a := range c.needed {
			if !yield(Object{Key: Key{addr: a}}, nil) {
				return
			}
		}
		for k := range c.listeners {
			if !yield(Object{Key: k}, nil) {
				return
			}
		}
	}
}

// forget closes the listeners at addresses that the host has lost, and forgets those that could
// be opened now.
func (c *Capture) forget(present map[netip.Addr]bool) {
	for k, l := range c.listeners {
		if present[k.addr] != (l != nil) || c.isRefused(k) {
			c.unlisten(k)
		}
	}
}

// Drifted is Drifted of [proxy.Abilities].
func (c *Capture) Drifted(ctx context.Context) bool {
	present, err := c.present(ctx)
	if err != nil {
		return true
	}
	for a := range c.needed {
		if !present[a] {
			return true
		}
	}
	for a := range c.added {
		if !c.needed[a] || !present[a] {
			return true
		}
	}
	for k := range c.listeners {
		if c.listenerDrifted(ctx, k, present[k.addr]) {
			return true
		}
	}
	return false
}

// listenerDrifted reports whether a listener is missing or superfluous, given whether the host has
// its address. One whose port another program has taken is missing once the port is free.
func (c *Capture) listenerDrifted(ctx context.Context, k Key, present bool) bool {
	if c.isRefused(k) {
		return !present || c.canListen(ctx, k)
	}
	return present != (c.listeners[k] != nil)
}

// Commit implements [backends.Target]. It lists the addresses of the node only if it has some to add.
func (c *Capture) Commit(ctx context.Context, ops []op) (out backends.Outcome) {
	var added []netip.Addr
	adds := false
	for i := range ops {
		if o := &ops[i]; o.Kind == backends.Add {
			adds = true
			if o.Key.isAddress() {
				added = append(added, o.Key.addr)
			}
		}
	}
	w := writer{Capture: c, end: time.Now().Add(c.Usable)}
	err := error(nil)
	if adds {
		err = w.begin(ctx, added)
	}
	if err != nil {
		return backends.PartialOutcome(0, len(ops), fmt.Errorf("%w: userspace: %w", backends.ErrUnavailable, err))
	}
	out = backends.Each(ctx, ops, func(o *op) error {
		if err := w.carryOut(ctx, o); err != nil {
			return fmt.Errorf("userspace: %w", err)
		}
		return nil
	})
	w.disown(added)
	if err := c.flush(); err != nil {
		out.Lost = fmt.Errorf("userspace: %w", err)
	}
	return out
}

// writer carries out the operations of one commit.
type writer struct {
	*Capture
	// present are the addresses of the node, failed are why others could not be added.
	present map[netip.Addr]bool
	failed  map[netip.Addr]error
	// end is when sockets must be able to listen at an address that was added.
	end time.Time
}

// begin notes in the file which addresses will be added, before they are.
func (w *writer) begin(ctx context.Context, addrs []netip.Addr) error {
	w.failed = map[netip.Addr]error{}
	present, err := w.load(ctx)
	if err != nil {
		return err
	}
	w.present = maps.Clone(present)
	for _, a := range addrs {
		if !w.present[a] {
			w.own.Add(a.String())
		}
	}
	if err = w.flush(); err != nil {
		w.disown(addrs)
	}
	return err
}

// disown removes from the file which addresses were not tried, because another op or the file itself had failed
// before.
func (w *writer) disown(addrs []netip.Addr) {
	for _, a := range addrs {
		if !w.present[a] && w.failed[a] == nil {
			w.own.Remove(a.String())
		}
	}
}

// carryOut carries out an operation. No listener is tried at an address that could not be added.
func (w *writer) carryOut(ctx context.Context, o *op) error {
	a := o.Key.addr
	switch {
	case o.Kind == backends.Remove && !o.Key.isAddress():
		w.unlisten(o.Key)
	case o.Kind == backends.Remove:
		delete(w.needed, a)
		if w.own.Has(a.String()) {
			w.leave(ctx, a)
		}
	case !o.Key.isAddress():
		if err := w.failed[a]; err != nil {
			return err
		}
		return w.open(ctx, o.Key)
	case w.present[a]:
		w.needed[a] = true
		w.refused.Delete(o.Key)
	default:
		if err := w.addOne(ctx, a); err != nil {
			w.failed[a] = fmt.Errorf("adding the address %v: %w", a, err)
			return w.failed[a]
		}
		w.present[a], w.needed[a] = true, true
	}
	return nil
}

// leave removes an address. One that cannot be removed is no error, as it harms no Service:
// [Capture.CheckNode] names it, and it is tried again after the next List.
func (c *Capture) leave(ctx context.Context, a netip.Addr) {
	if err := c.removeOne(ctx, a); err != nil {
		c.refused.Store(Key{addr: a}, fmt.Errorf("removing the address %v: %w", a, err))
	}
}

// addOne adds an address that is in the file. After an error it is the backend's own only if it
// was added nevertheless.
func (c *Capture) addOne(ctx context.Context, a netip.Addr) error {
	err := c.Manager.Add(ctx, a)
	if err == nil {
		c.ops.Add(1)
		return nil
	}
	present, failed := c.present(context.WithoutCancel(ctx))
	isOthers := errors.Is(err, fs.ErrExist) // Another program has added it in the meantime.
	if isOthers || failed == nil && !present[a] {
		c.own.Remove(a.String())
	}
	if isOthers {
		return nil
	}
	return err
}

// removeOne removes an address. That the host does not have it is no error.
func (c *Capture) removeOne(ctx context.Context, a netip.Addr) error {
	if err := c.Manager.Remove(ctx, a); err != nil {
		present, failed := c.present(ctx)
		if failed != nil || present[a] {
			return err
		}
	}
	c.own.Remove(a.String())
	c.refused.Delete(Key{addr: a})
	c.ops.Add(1)
	return nil
}

// Cleanup is Cleanup of [backends.TargetAbilities].
func (c *Capture) Cleanup(ctx context.Context) error {
	if err := c.cleanup(ctx); err != nil {
		return fmt.Errorf("userspace: %w", err)
	}
	return nil
}

func (c *Capture) cleanup(ctx context.Context) error {
	_, err := c.load(ctx)
	if err == nil {
		err = c.CloseListeners()
	}
	if err != nil {
		return err
	}
	clear(c.needed)
	c.refused.Clear()
	for a := range c.added {
		c.leave(ctx, a)
	}
	err = errors.Join(ctx.Err(), c.flush())
	for _, refused := range c.refused.Range {
		failure, _ := refused.(error)
		err = errors.Join(err, failure)
	}
	if err != nil {
		return err
	}
	if err := c.own.Clear(); err != nil {
		return fmt.Errorf("removing the record of addresses: %w", err)
	}
	return nil
}
