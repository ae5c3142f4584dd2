package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/proxy"
)

// New returns a backend that programs the network namespace of the calling thread. It needs
// CAP_NET_ADMIN in the initial user namespace, CAP_NET_RAW, which iptables needs for its match
// set, and the programs iptables-restore and iptables-save. If parts of the kernel, programs or
// privileges are missing, New or the first Apply fails with [proxy.ErrUnsupported].
//
// The backend counts entries of sets, addresses, virtual servers and real servers that it has
// added, changed or removed, and rules ([proxy.OperationCounter]). It has sockets until it is
// closed ([io.Closer]); what then still drains stays until another process of the same
// identity removes it.
func New(options Options) (proxy.Backend, error) {
	b, err := newBackend(options)
	if err != nil {
		return nil, err
	}
	i, err := kinds.Open(b.target.options.Identity, kinds.IPVS)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ipvs: %w", err), b.Close())
	}
	return &successor{b, i}, nil
}

// engine is the abilities of what [backends.New] returns.
type engine interface {
	proxy.Backend
	proxy.OperationCounter
	proxy.DriftChecker
	backends.FlowNeeder
	backends.Finder
	backends.LimitChecker
	backends.NodeChecker
	io.Closer
}

// backend adds to the engine what it does not pass on from the target.
type backend struct {
	engine
	target *target
}

// CountTraffic implements [proxy.TrafficCounter].
func (b *backend) CountTraffic(ctx context.Context, s proxy.Snapshot, each func(proxy.ServicePortName, proxy.Traffic)) error {
	return b.target.CountTraffic(ctx, s, each)
}

// successor is a backend among those of other kinds.
type successor struct {
	*backend
	instance *kinds.Instance
}

// Apply implements [proxy.Backend].
func (s *successor) Apply(ctx context.Context, old, new proxy.Snapshot) error {
	return s.instance.Succeed(ctx, old, s.backend.Apply(ctx, old, new))
}

// CheckNode implements [backends.NodeChecker].
func (s *successor) CheckNode(n proxy.Snapshot) []*proxy.Problem {
	return append(s.backend.CheckNode(n), s.instance.CheckNode(n)...)
}

// Close implements [io.Closer].
func (s *successor) Close() error { return errors.Join(s.instance.Close(), s.backend.Close()) }

// newBackend returns a backend that knows nothing of other kinds.
func newBackend(o Options) (*backend, error) {
	t, err := newTarget(o, ipvs.Open)
	if err != nil {
		return nil, err
	}
	return over(t, t)
}

// over returns a backend of a target. Tests may have another one around it.
func over(t *target, around backends.Target[key, value]) (*backend, error) {
	e, ok := backends.New(t.render, around).(engine)
	if !ok {
		return nil, errors.Join(errors.New("ipvs: the engine lacks an ability"), t.Close())
	}
	return &backend{e, t}, nil
}

// newTarget returns a target with a connection to IPVS.
func newTarget(options Options, openKernel func() (*ipvs.Conn, error)) (t *target, err error) {
	o, err := options.complete()
	if err != nil {
		return nil, err
	}
	r, err := newRenderer(o)
	if err != nil {
		return nil, err
	}
	t = &target{renderer: r, maxEntries: maxEntries, exact: newExactFrontends(nil), drainer: drainer{timeout: o.DrainTimeout, of: draining{}}}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Close())
			t = nil
		}
	}()
	if t.device.at, err = netns.Current(); err != nil {
		return t, fmt.Errorf("ipvs: the network namespace: %w", err)
	}
	t.device.name = strings.ToLower(r.prefix) + ipaddr.ServiceDeviceSuffix
	t.marks.limit = markCount
	_, t.marks.next = identify(r.prefix)
	if t.kernel, err = openKernel(); err != nil {
		return t, unsupported(err)
	}
	if t.sets, err = ipvs.OpenSets(); err != nil {
		return t, unsupported(err)
	}
	t.rules.Backend, err = xtables.New(r.ruleset())
	return t, err
}

// unsupported explains why a part of the kernel cannot be reached.
func unsupported(err error) error {
	switch {
	case errors.Is(err, ipvs.ErrMissing):
		return missing("ip_vs", err)
	case errors.Is(err, ipvs.ErrUnsupported):
		return missing("ip_set", err)
	}
	return fmt.Errorf("ipvs: %w: %w", proxy.ErrUnsupported, err)
}
