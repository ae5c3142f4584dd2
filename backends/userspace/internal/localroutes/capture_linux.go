package localroutes

import (
	"context"
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/proxy"
)

// Capture is a [backends.Target]: the routes, and the program that chooses sockets. It
// must be closed.
type Capture struct {
	host.Config
	*target
}

// New attaches the program to the network namespace of the calling thread.
func New(c *host.Config) (*Capture, error) {
	l, err := newLookup()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", proxy.ErrUnsupported, err)
	}
	return &Capture{Config: *c, target: &target{
		routes: c.LocalRoutes(), handle: c.Sockets.Netlink(), lookup: l, have: map[Key]Value{},
	}}, nil
}

// Close detaches the program. Routes stay.
func (c *Capture) Close() error { return c.lookup.close() }

var (
	_ backends.Target[Key, Value] = (*Capture)(nil)
	_ backends.Checker            = (*Capture)(nil)
)

// Numbers of the addresses to listen at.
const (
	listenOthers uint8 = iota + 1 // for pods and outside, which the client's address distinguishes
	listenNode
	listenDrop // receives packets to drop
)

// Listen opens the sockets of an IP family, and adds them to the program's map.
func (c *Capture) Listen(ctx context.Context, f v1.IPFamily, ls *host.Listeners) error {
	replier, err := c.Sockets.Replier(f)
	if err != nil {
		return err
	}
	ls.CloseLast(replier)
	for _, x := range []struct {
		number uint8
		slot   uint32
		origin engine.Origin
	}{{listenOthers, slotOthers, engine.ByAddress}, {listenNode, slotNode, engine.Node}, {listenDrop, slotDrop, 0}} {
		l, err := ls.Open(ctx, c.Sockets, c.ListenAddr(f, x.number, false), host.FreeBind)
		if err != nil {
			return err
		}
		if x.number == listenDrop {
			if err := l.DropAll(); err != nil {
				return err
			}
		} else {
			l.Origin, l.UDP.Replier, l.UDP.Frontend = x.origin, replier, c.frontendOf
			ls.Serve(l)
		}
		if err := c.lookup.setSocket(slot(x.slot, f == v1.IPv6Protocol, false), l.TCP); err != nil {
			return err
		}
		if err := c.lookup.setSocket(slot(x.slot, f == v1.IPv6Protocol, true), l.UDP); err != nil {
			return err
		}
	}
	loopback := netip.PrefixFrom(netip.IPv6Loopback(), 128)
	if f == v1.IPv4Protocol {
		loopback = netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
	}
	return c.lookup.serveNodePorts(loopback, false)
}

// frontendOf returns the destination of a datagram, unless its source is a frontend: the answer
// would be captured again, and two Services that answer any datagram would answer each other
// without end.
func (c *Capture) frontendOf(client netip.AddrPort, controls []byte) (netip.AddrPort, bool) {
	if c.Node.IsFrontend(v1.ProtocolUDP, client) {
		return netip.AddrPort{}, false
	}
	return host.OriginalDestination(client, controls)
}
