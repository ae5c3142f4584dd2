package addresses

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/proxy"
)

// Manager changes the addresses of an interface. Addresses may be called at any time, and from any
// goroutine; calls of the other methods do not overlap. Errors wrap [backends.ErrUnavailable] if
// no address can be changed at present: the interface or a privilege is missing.
type Manager interface {
	// Addresses returns the addresses of all interfaces of the host.
	Addresses(ctx context.Context) ([]netip.Addr, error)
	// Add adds an address, with a prefix of its own, to the interface. The error wraps
	// [fs.ErrExist] if the host has the address already.
	Add(ctx context.Context, a netip.Addr) error
	// Remove removes an address from the interface.
	Remove(ctx context.Context, a netip.Addr) error
}

// Config configures a [Capture].
type Config struct {
	Manager Manager
	// State is the path of the file with the addresses that were added.
	State string
	// Families are the IP families to serve.
	Families []v1.IPFamily
	// AwaitEndpoints says that connections to service ports without endpoints are
	// accepted, and wait for an endpoint.
	AwaitEndpoints bool
	// Usable is how long an address that was added may take until sockets can listen at it.
	Usable time.Duration
	// Namespace is where sockets are made; nil stands for [Anywhere].
	Namespace Namespace
}

// Capture is a [backends.Target]: addresses on an interface, and sockets that listen at them. Its
// methods are not called at the same time, except Operations and those of the dialer.
type Capture struct {
	Config
	sockets

	state *state

	needed map[netip.Addr]bool // those of service ports
	// refused are those at which a listener has failed since the last Sweep, kept are those that
	// it has kept for that reason.
	refused, kept map[netip.Addr]bool
	// taken are the node ports at which another program listens, or which the system denies. Their
	// service ports are served at all other frontends. left are the addresses that could not be
	// removed since the last List.
	taken, left refusals
}

var (
	_ backends.Target[Key, Value] = (*Capture)(nil)
	_ backends.Checker            = (*Capture)(nil)
	_ backends.Cleaner            = (*Capture)(nil)
	_ backends.NodeChecker        = (*Capture)(nil)
)

// New returns a capture. Its method ServeBy must be called before it is used.
func New(c Config) *Capture {
	manager := &lately{Manager: c.Manager}
	c.Manager = manager
	t := &Capture{
		Config: c, state: newState(c.State),
		needed: map[netip.Addr]bool{}, refused: map[netip.Addr]bool{},
	}
	t.sockets = sockets{Frontends: host.NewFrontends(manager.isLocal), listeners: map[Key]io.Closer{}, namespace: orAnywhere(c.Namespace), originOf: originOf}
	return t
}

func (c *Capture) serves(f v1.IPFamily) bool { return slices.Contains(c.Families, f) }

// Check implements [backends.Checker].
func (c *Capture) Check(_ *proxy.Node, port *proxy.ServicePort) error {
	if !c.serves(port.Name.Family) {
		return nil
	}
	return host.CheckProtocol(port)
}

// present returns the addresses of the host.
func (c *Capture) present(ctx context.Context) (map[netip.Addr]bool, error) {
	list, err := c.Manager.Addresses(ctx)
	if err != nil {
		return nil, fmt.Errorf("userspace: listing the addresses of the node: %w", err)
	}
	return setOf(list), nil
}

// load reads the file, once. Addresses in it that the host does not have are not the backend's any
// more.
func (c *Capture) load(present map[netip.Addr]bool) error {
	if err := c.state.load(); err != nil {
		return fmt.Errorf("userspace: %w", err)
	}
	for a := range c.state.own {
		if !present[a] {
			c.state.remove(a)
		}
	}
	return nil
}

// List implements [backends.Target]. An address of its own stays needed unless an operation removes
// it.
func (c *Capture) List(ctx context.Context) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		present, err := c.present(ctx)
		if err == nil {
			err = c.load(present)
		}
		if err != nil {
			yield(Object{}, err)
			return
		}
		c.forget(present)
		c.left.clear()
		maps.Copy(c.needed, c.state.own)
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
		if present[k.addr] != (l != nil) || c.taken.has(k) {
			c.unlisten(k)
		}
	}
}

// Drifted implements [proxy.DriftChecker].
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
	for a := range c.state.own {
		if !c.needed[a] && !c.kept[a] || !present[a] {
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
	if c.taken.has(k) {
		return !present || c.canListen(ctx, k)
	}
	return present != (c.listeners[k] != nil)
}

// WaitDrift implements [proxy.DriftChecker]. It cannot wait: resyncs check the addresses.
func (c *Capture) WaitDrift(context.Context) error {
	return fmt.Errorf("userspace: %w: waiting for changes of addresses", proxy.ErrUnsupported)
}

// Commit implements [backends.Target]. It removes no address: [Capture.Sweep] does.
func (c *Capture) Commit(ctx context.Context, ops []op) error {
	if err := c.commitAdded(ctx, ops); err != nil {
		return fmt.Errorf("userspace: %w", err)
	}
	for i := range ops {
		switch o := &ops[i]; {
		case o.Kind != backends.Remove:
		case o.Key.isAddress():
			delete(c.needed, o.Key.addr)
		default:
			c.unlisten(o.Key)
		}
	}
	return nil
}

// commitAdded adds addresses, and opens listeners. If there are none to add, it does not list the
// addresses of the node.
func (c *Capture) commitAdded(ctx context.Context, ops []op) error {
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
	if !adds {
		return nil
	}
	present, err := c.add(ctx, added)
	if err != nil {
		return err
	}
	if err := c.openAll(ctx, ops, present); err != nil {
		return err
	}
	for _, a := range added {
		c.needed[a] = true
	}
	return nil
}

// add adds the addresses that the host lacks, and returns all that it has then.
func (c *Capture) add(ctx context.Context, addrs []netip.Addr) (map[netip.Addr]bool, error) {
	present, err := c.present(ctx)
	if err == nil {
		err = c.load(present)
	}
	if err != nil {
		return nil, err
	}
	var missing []netip.Addr
	for _, a := range addrs {
		if !present[a] {
			missing = append(missing, a)
			c.state.add(a)
		}
	}
	if len(missing) == 0 {
		return present, nil
	}
	if err := c.state.flush(); err != nil {
		for _, a := range missing {
			c.state.remove(a)
		}
		return nil, err
	}
	for i, a := range missing {
		if err := c.addOne(ctx, a); err != nil {
			for _, later := range missing[i+1:] {
				c.state.remove(later)
			}
			return nil, fmt.Errorf("adding the address %v: %w", a, err)
		}
		present[a] = true
	}
	return present, nil
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
	if isOthers(err) || failed == nil && !present[a] {
		c.state.remove(a)
	}
	if isOthers(err) {
		return nil // Another program has added it in the meantime.
	}
	return err
}

// Sweep removes the addresses that no service port needs any more. That is not done by Commit:
// while the generic backend looks for a faulty port, it commits the same addresses several times.
// An address at which a listener has failed stays: an earlier process that still has connections
// may listen there. One that cannot be removed is no error, as it harms no Service:
// [Capture.CheckNode] names it, and it is tried again after the next List.
func (c *Capture) Sweep(ctx context.Context) error {
	c.kept, c.refused = c.refused, map[netip.Addr]bool{}
	for a := range c.state.own {
		if c.needed[a] || c.kept[a] || c.left.has(Key{addr: a}) {
			continue
		}
		if err := c.removeOne(ctx, a); err != nil {
			c.left.put(Key{addr: a}, fmt.Errorf("removing the address %v: %w", a, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	err := c.state.flush()
	if err = errors.Join(ctx.Err(), err); err != nil {
		return fmt.Errorf("userspace: %w", err)
	}
	return nil
}

// removeOne removes an address. That the host does not have it is no error.
func (c *Capture) removeOne(ctx context.Context, a netip.Addr) error {
	if err := c.Manager.Remove(ctx, a); err != nil {
		present, failed := c.present(ctx)
		if failed != nil || present[a] {
			return err
		}
	}
	c.state.remove(a)
	c.ops.Add(1)
	return nil
}

// Cleanup implements [backends.Cleaner].
func (c *Capture) Cleanup(ctx context.Context) error {
	present, err := c.present(ctx)
	if err == nil {
		err = c.load(present)
	}
	if err != nil {
		return err
	}
	if err := c.CloseListeners(); err != nil {
		return err
	}
	clear(c.needed)
	clear(c.refused)
	c.taken.clear()
	c.left.clear()
	if err := c.Sweep(ctx); err != nil {
		return err
	}
	if err := c.left.failure(); err != nil {
		return fmt.Errorf("userspace: %w", err)
	}
	return c.state.clear()
}
