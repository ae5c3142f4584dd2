package localroutes

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/proxy"
)

// target is the edge to the table of local addresses, and to the BPF program. The routes
// outlive the process; the program and its maps do not.
type target struct {
	routes *host.LocalRoutes
	handle *netlink.Handle
	lookup *lookup
	// have are all existing objects; of routes, those of the last listing, with the commits
	// since then.
	have map[Key]Value
	// own are the addresses of the node itself.
	own map[netip.Addr]bool
	ops atomic.Uint64
}

// Operations implements [proxy.OperationCounter]. It counts routes, which outlive the process.
func (t *target) Operations() uint64 { return t.ops.Load() }

// List implements [backends.Target].
func (t *target) List(context.Context) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		if err := t.refresh(); err != nil {
			yield(Object{}, err)
			return
		}
		for k, v := range t.have {
			if !yield(Object{Key: k, Value: v}, nil) {
				return
			}
		}
	}
}

// refresh lists routes and addresses, and attaches the program again if another program has
// detached it.
func (t *target) refresh() error {
	if err := t.lookup.restore(); err != nil {
		return err
	}
	routes, own, err := t.read()
	if err != nil {
		return err
	}
	maps.DeleteFunc(t.have, func(k Key, _ Value) bool { return k.isRoute() })
	maps.Copy(t.have, routes)
	t.own = own
	for k := range t.have {
		if k.kind == kindExternal {
			err = errors.Join(err, t.lookup.own(k.prefix.Addr(), t.owns(k.prefix.Addr())))
		}
	}
	return err
}

// read lists routes and addresses.
func (t *target) read() (routes map[Key]Value, addrs map[netip.Addr]bool, err error) {
	routes, addrs = map[Key]Value{}, map[netip.Addr]bool{}
	for _, f := range host.Families() {
		list, err := t.routes.List(f)
		if err != nil {
			return nil, nil, err
		}
		for i := range list {
			k, v := objectOf(&list[i])
			routes[k] = v
		}
		all, err := netns.Consistent(func() ([]netlink.Addr, error) { return t.handle.AddrList(nil, host.SocketFamily(f)) })
		if err != nil {
			return nil, nil, fmt.Errorf("userspace: listing addresses: %w", err)
		}
		for i := range all {
			if a, ok := netip.AddrFromSlice(all[i].IP); ok {
				addrs[a.Unmap()] = true
			}
		}
	}
	return routes, addrs, nil
}

// objectOf returns the object of a route.
func objectOf(r *netlink.Route) (k Key, v Value) {
	to := host.Destination(r)
	if r.Type != unix.RTN_LOCAL {
		return Key{kind: kindBlackhole, prefix: to}, Value{}
	}
	if source, ok := netip.AddrFromSlice(r.Src); ok {
		v.source = source.Unmap()
	}
	return atAddress(kindLocal, to.Addr()), v
}

// WaitDrift implements [proxy.DriftChecker]. It cannot wait: resyncs check routes and
// addresses.
func (t *target) WaitDrift(context.Context) error {
	return fmt.Errorf("userspace: %w: waiting for changes of routes", proxy.ErrUnsupported)
}

// Drifted implements [proxy.DriftChecker].
func (t *target) Drifted(context.Context) bool {
	if is, err := t.lookup.isAttached(); err != nil || !is {
		return true
	}
	routes, own, err := t.read()
	if err != nil || !maps.Equal(own, t.own) {
		return true
	}
	known := maps.Clone(t.have)
	maps.DeleteFunc(known, func(k Key, _ Value) bool { return !k.isRoute() })
	return !maps.Equal(routes, known)
}

// owns reports whether all ports of an address are the backend's: those of ClusterIPs are, and
// those of external addresses unless the host has the address, too.
func (t *target) owns(a netip.Addr) bool {
	_, cluster := t.have[atAddress(kindClusterIP, a)]
	_, external := t.have[atAddress(kindExternal, a)]
	return cluster || external && !t.own[a]
}

// Commit implements [backends.Target].
func (t *target) Commit(ctx context.Context, ops []op) error {
	var done []op
	for i := range ops {
		err := ctx.Err()
		o := ops[i]
		was, had := t.have[o.Key]
		if err == nil {
			err = t.do(&o)
		}
		if err != nil {
			return errors.Join(err, t.undo(done))
		}
		done = append(done, inverse(&o, was, had))
		if o.Key.isRoute() {
			t.ops.Add(1)
		}
	}
	return nil
}

func inverse(o *op, was Value, had bool) op {
	if !had {
		return op{Kind: backends.Remove, Key: o.Key}
	}
	return op{Kind: backends.Add, Key: o.Key, Value: was}
}

func (t *target) undo(done []op) error {
	for i := len(done) - 1; i >= 0; i-- {
		if err := t.do(&done[i]); err != nil {
			return fmt.Errorf("%w: %w", proxy.ErrDataplaneLost, err)
		}
	}
	return nil
}

// do carries out an operation. It is idempotent.
func (t *target) do(o *op) error {
	was, had := t.have[o.Key]
	if o.Kind == backends.Remove {
		delete(t.have, o.Key)
	} else {
		t.have[o.Key] = o.Value
	}
	err := t.write(o)
	switch {
	case err == nil:
		return nil
	case had:
		t.have[o.Key] = was
	default:
		delete(t.have, o.Key)
	}
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("userspace: %w: %w", proxy.ErrUnsupported, err)
	}
	return fmt.Errorf("userspace: %w", err)
}

func (t *target) write(o *op) error {
	k, gone := &o.Key, o.Kind == backends.Remove
	switch k.kind {
	case kindFrontend:
		if gone {
			return remove(t.lookup.frontends, keyOf(k.protocol, k.frontend))
		}
		return t.lookup.setFrontend(k.protocol, k.frontend, actionOf(k, o.Value.verdict))
	case kindClusterIP, kindExternal:
		return t.lookup.own(k.prefix.Addr(), t.owns(k.prefix.Addr()))
	case kindNodePorts:
		if gone {
			return remove(t.lookup.nodePorts, rangeOf(k.prefix))
		}
		return t.lookup.serveNodePorts(k.prefix, true)
	case kindLocal:
		if gone {
			return t.routes.Delete(k.prefix, unix.RTN_LOCAL)
		}
		err := t.routes.Put(k.prefix, unix.RTN_LOCAL, o.Value.source)
		if errors.Is(err, unix.EINVAL) && o.Value.source.IsValid() {
			// The node does not have its address yet. Until then, the source of
			// its own connections is the frontend's address.
			return t.routes.Put(k.prefix, unix.RTN_LOCAL, netip.Addr{})
		}
		return err
	case kindBlackhole:
		if gone {
			return t.routes.Delete(k.prefix, unix.RTN_BLACKHOLE)
		}
		return t.routes.Put(k.prefix, unix.RTN_BLACKHOLE, netip.Addr{})
	default:
		return fmt.Errorf("unknown kind of object: %d", k.kind)
	}
}

// actionOf returns the action of a frontend in the program.
func actionOf(k *Key, v verdict) uint32 {
	six, udp := k.frontend.Addr().Is6(), k.protocol == unix.IPPROTO_UDP
	switch v {
	case capture:
		return slot(slotOthers, six, udp)
	case drop:
		return slot(slotDrop, six, udp)
	default:
		return actionRefuse
	}
}

// Cleanup implements [backends.Cleaner].
func (t *target) Cleanup(context.Context) error {
	if err := t.refresh(); err != nil {
		return err
	}
	// The routes are removed before the objects of their addresses.
	for _, routes := range []bool{true, false} {
		for k := range t.have {
			if k.isRoute() != routes {
				continue
			}
			if err := t.do(&op{Kind: backends.Remove, Key: k}); err != nil {
				return err
			}
			if routes {
				t.ops.Add(1)
			}
		}
	}
	return nil
}
