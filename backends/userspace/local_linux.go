package userspace

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
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// local is the edge to the table of local addresses, and to the program that
// chooses sockets. The routes outlive the process, what the program knows does not.
type local struct {
	*renderer

	routes *localRoutes
	lookup *lookup
	// have is all that there is; of routes, what there was at the last look
	// and has been written since.
	have map[key]value
	// host are the addresses that the host has itself.
	host map[netip.Addr]bool
	ops  atomic.Uint64
}

func (l *local) close() error { return l.lookup.Close() }

// Operations implements [proxy.OperationCounter]. It counts what stays.
func (l *local) Operations() uint64 { return l.ops.Load() }

func (k key) isRoute() bool { return k.kind == kindLocal || k.kind == kindBlackhole }

// List implements [backends.Target].
func (l *local) List(context.Context) iter.Seq2[object, error] {
	return func(yield func(object, error) bool) {
		if err := l.look(); err != nil {
			yield(object{}, err)
			return
		}
		for k, v := range l.have {
			if !yield(object{Key: k, Value: v}, nil) {
				return
			}
		}
	}
}

// look finds out which routes and which addresses there are, and puts the program back
// where it has gone.
func (l *local) look() error {
	if err := l.lookup.restore(); err != nil {
		return err
	}
	routes, host, err := l.see()
	if err != nil {
		return err
	}
	maps.DeleteFunc(l.have, func(k key, _ value) bool { return k.isRoute() })
	maps.Copy(l.have, routes)
	l.host = host
	for k := range l.have {
		if k.kind == kindExternal {
			err = errors.Join(err, l.lookup.own(k.addr.Addr(), l.owns(k.addr.Addr())))
		}
	}
	return err
}

func (l *local) see() (routes map[key]value, host map[netip.Addr]bool, err error) {
	routes, host = map[key]value{}, map[netip.Addr]bool{}
	for _, fam := range allFamilies() {
		list, err := l.routes.list(fam)
		if err != nil {
			return nil, nil, err
		}
		for i := range list {
			k, v := objectOf(&list[i], fam)
			routes[k] = v
		}
		addrs, err := whole(func() ([]netlink.Addr, error) { return l.routes.handle.AddrList(nil, linkFamily(fam)) })
		if err != nil {
			return nil, nil, fmt.Errorf("userspace: listing addresses: %w", err)
		}
		for i := range addrs {
			if a, ok := netip.AddrFromSlice(addrs[i].IP); ok {
				host[a.Unmap()] = true
			}
		}
	}
	return routes, host, nil
}

// objectOf says which object a route is.
func objectOf(r *netlink.Route, fam nfnetlink.Family) (k key, v value) {
	to := destination(r)
	if r.Type != unix.RTN_LOCAL {
		return key{kind: kindBlackhole, fam: fam, source: to}, value{}
	}
	if source, ok := netip.AddrFromSlice(r.Src); ok {
		v.chain = source.Unmap().String()
	}
	return key{kind: kindLocal, fam: fam, addr: netip.AddrPortFrom(to.Addr(), 0)}, v
}

// WaitDrift implements [proxy.DriftChecker]. It cannot: routes and addresses are looked
// at by resyncs.
func (l *local) WaitDrift(context.Context) error {
	return fmt.Errorf("userspace: %w: waiting for changes of routes", proxy.ErrUnsupported)
}

// Drifted implements [proxy.DriftChecker].
func (l *local) Drifted(context.Context) bool {
	if is, err := l.lookup.isAttached(); err != nil || !is {
		return true
	}
	routes, host, err := l.see()
	if err != nil || !maps.Equal(host, l.host) {
		return true
	}
	known := maps.Clone(l.have)
	maps.DeleteFunc(known, func(k key, _ value) bool { return !k.isRoute() })
	return !maps.Equal(routes, known)
}

// owns reports whether all ports of an address are the backend's: of ClusterIPs they
// are, of external addresses unless the host has the address as well.
func (l *local) owns(a netip.Addr) bool {
	at := netip.AddrPortFrom(a, 0)
	k := key{kind: kindClusterIP, fam: familyOfAddr(a), addr: at}
	_, cluster := l.have[k]
	k.kind = kindExternal
	_, external := l.have[k]
	return cluster || external && !l.host[a]
}

// Commit implements [backends.Target].
func (l *local) Commit(ctx context.Context, ops []op) error {
	var done []op
	for i := range ops {
		err := ctx.Err()
		o := ops[i]
		was, had := l.have[o.Key]
		if err == nil {
			err = l.do(&o)
		}
		if err != nil {
			return errors.Join(err, l.undo(done))
		}
		done = append(done, inverse(&o, was, had))
		if o.Key.isRoute() {
			l.ops.Add(1)
		}
	}
	return nil
}

func inverse(o *op, was value, had bool) op {
	if !had {
		return op{Kind: backends.Remove, Key: o.Key}
	}
	return op{Kind: backends.Add, Key: o.Key, Value: was}
}

func (l *local) undo(done []op) error {
	for i := len(done) - 1; i >= 0; i-- {
		if err := l.do(&done[i]); err != nil {
			return fmt.Errorf("%w: %w", proxy.ErrDataplaneLost, err)
		}
	}
	return nil
}

// do carries an operation out, also one that has been carried out already.
func (l *local) do(o *op) error {
	was, had := l.have[o.Key]
	if o.Kind == backends.Remove {
		delete(l.have, o.Key)
	} else {
		l.have[o.Key] = o.Value
	}
	err := l.write(o)
	switch {
	case err == nil:
		return nil
	case had:
		l.have[o.Key] = was
	default:
		delete(l.have, o.Key)
	}
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("userspace: %w: %w", proxy.ErrUnsupported, err)
	}
	return fmt.Errorf("userspace: %w", err)
}

func (l *local) write(o *op) error {
	k, gone := &o.Key, o.Kind == backends.Remove
	switch k.kind {
	case kindFrontend:
		if gone {
			return l.lookup.setFrontend(k.proto, k.addr, nil)
		}
		six := k.addr.Addr().Is6()
		verdict := map[uint64]uint32{
			localCapture: slot(slotDoor, six, k.proto), localRefuse: verdictRefuse, localDrop: slot(slotSink, six, k.proto),
		}[o.Value.hash]
		return l.lookup.setFrontend(k.proto, k.addr, native(verdict))
	case kindClusterIP, kindExternal:
		return l.lookup.own(k.addr.Addr(), l.owns(k.addr.Addr()))
	case kindNodePorts:
		if gone {
			return l.lookup.serveNodePorts(k.source, nil)
		}
		return l.lookup.serveNodePorts(k.source, native(1))
	case kindLocal:
		to := netip.PrefixFrom(k.addr.Addr(), k.addr.Addr().BitLen())
		if gone {
			return l.routes.take(to, unix.RTN_LOCAL)
		}
		source, _ := netip.ParseAddr(o.Value.chain)
		err := l.routes.put(to, unix.RTN_LOCAL, source)
		if errors.Is(err, unix.EINVAL) && source.IsValid() {
			// The node has not got its address yet. Its own connections
			// come from the frontend's until then.
			return l.routes.put(to, unix.RTN_LOCAL, netip.Addr{})
		}
		return err
	case kindBlackhole:
		if gone {
			return l.routes.take(k.source, unix.RTN_BLACKHOLE)
		}
		return l.routes.put(k.source, unix.RTN_BLACKHOLE, netip.Addr{})
	default:
		return fmt.Errorf("there is no object of kind %d", k.kind)
	}
}

// Cleanup implements [backends.Cleaner].
func (l *local) Cleanup(context.Context) error {
	if err := l.look(); err != nil {
		return err
	}
	// Addresses go before what is served there.
	for _, routes := range []bool{true, false} {
		for k := range l.have {
			if k.isRoute() != routes {
				continue
			}
			if err := l.do(&op{Kind: backends.Remove, Key: k}); err != nil {
				return err
			}
			if routes {
				l.ops.Add(1)
			}
		}
	}
	return nil
}

func familyOfAddr(a netip.Addr) nfnetlink.Family {
	if a.Is6() {
		return nfnetlink.IPv6
	}
	return nfnetlink.IPv4
}
