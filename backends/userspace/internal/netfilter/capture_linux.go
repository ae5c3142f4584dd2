package netfilter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/backends/userspace/internal/neterr"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// Capture is a [backends.Target]: the tables, and the routing that they need. It also has the
// listeners to which both lead packets. Tables and routing stay when it is closed.
type Capture struct {
	renderer
	*nft.Conn

	sockets *host.Sockets
	routes  *routes
	events  *rawnetlink.Listener
	batch   nfnetlink.Batch
	// found are the frontends of the last listing.
	found backends.Finds
	ops   atomic.Uint64

	// borrowing reaches endpoints from the addresses of clients, with TPROXY.
	borrowing *borrowingDialer
	opened    map[v1.IPFamily]*listeners
	engine    *engine.Engine // serves the listeners
}

// New returns a capture in the network namespace of the calling thread. Its method ServeBy must be
// called before its listeners are opened.
func New(config Config) (*Capture, error) {
	sockets, err := host.OpenSockets()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", proxy.ErrUnsupported, err)
	}
	conn, err := nft.Open(config.Identity.Name)
	if err != nil {
		return nil, errors.Join(err, sockets.Close())
	}
	events, err := listenRouting()
	if err != nil {
		return nil, errors.Join(err, conn.Close(), sockets.Close())
	}
	c := &Capture{
		renderer: renderer{Config: config}, Conn: conn, sockets: sockets, events: events,
		borrowing: newDialer(sockets), opened: map[v1.IPFamily]*listeners{},
	}
	c.routes = &routes{&c.renderer, sockets.Netlink()}
	return c, nil
}

// Close ends the connections to the kernel.
func (c *Capture) Close() error {
	return errors.Join(c.events.Close(), c.Conn.Close(), c.sockets.Close())
}

// ServeBy has an engine serve the listeners.
func (c *Capture) ServeBy(e *engine.Engine) { c.engine = e }

// Configure adds how the engine reaches endpoints.
func (c *Capture) Configure(config *engine.Config) {
	if c.Redirect {
		config.Captured, config.IsLocal, config.Hooks.Dial = true, c.sockets.IsLocal, c.sockets.Reach
	} else {
		config.Link, config.Hooks.Dial = c.sockets.Link, c.borrowing.Dial
	}
}

// StartAt makes a port the next source port with TPROXY, for tests.
func (c *Capture) StartAt(port uint16) { c.borrowing.ports.startAt(port) }

// listeners are the sockets of one IP family.
type listeners struct {
	// sockets accept new clients, helpers are needed by existing connections and sessions.
	sockets, helpers []io.Closer
}

// Open opens the sockets, unless they are open. If everything is applied again, it finds out which IP
// families the node can serve.
func (c *Capture) Open(ctx context.Context, again bool) error {
	if again {
		c.look()
	}
	for _, f := range c.served() {
		if c.opened[f] != nil {
			continue
		}
		c.opened[f] = &listeners{}
		if err := c.open(ctx, f, c.opened[f]); err != nil {
			err = errors.Join(fmt.Errorf("userspace: %w", c.explain(err, f)), c.opened[f].close())
			delete(c.opened, f)
			return err
		}
	}
	return nil
}

func (c *Capture) open(ctx context.Context, f v1.IPFamily, ls *listeners) error {
	conntrack, err := newConntrack(c.sockets)
	if err != nil {
		return err
	}
	ls.helpers = append(ls.helpers, conntrack)
	var through *replier
	if !c.Redirect {
		if through, err = newReplier(c.sockets, f); err != nil {
			return err
		}
		ls.helpers = append(ls.helpers, through)
	}
	for _, x := range c.listeners() {
		at, translated := c.address(x, f), c.isTranslated(x)
		tcp, udp, err := ls.listen(ctx, c.sockets, at, translated)
		if err != nil {
			return fmt.Errorf("listening at %v: %w", at, err)
		}
		connections := engine.Listener{Listener: tcp, Origin: x.origin()}
		datagrams := &packetListener{UDPConn: udp, Replier: through, origin: x.origin(), frontend: originalDestination}
		if translated {
			connections.Destination, datagrams.Replier = translatedFrom, sameSocket{udp}
			datagrams.frontend = func(client netip.AddrPort, _ []byte) (netip.AddrPort, bool) {
				to, err := conntrack.frontend(client, at)
				return to, err == nil // a datagram without a conntrack entry is dropped
			}
		}
		c.engine.Serve(connections)
		c.engine.ServePackets(datagrams)
	}
	return nil
}

// listen opens the sockets of a listener.
func (ls *listeners) listen(ctx context.Context, s *host.Sockets, at netip.AddrPort, translated bool) (tcp *net.TCPListener, udp *net.UDPConn, err error) {
	claim := transparent
	if translated {
		claim = freeBind
	}
	for _, x := range []struct {
		protocol v1.Protocol
		options  []func(fd int) error
	}{{v1.ProtocolTCP, []func(int) error{keepAlive, claim}}, {v1.ProtocolUDP, []func(int) error{sentTo, makeRoom, claim}}} {
		config := &net.ListenConfig{Control: control(x.options...), KeepAlive: -1}
		// A program that this process starts has the sockets that an earlier backend of the process has
		// closed, until it runs.
		err = host.Retry(ctx, neterr.InUse, time.Now().Add(time.Second), func() error {
			socket, err := s.Listen(ctx, config, x.protocol, at)
			switch x := socket.(type) {
			case *net.TCPListener:
				tcp = x
			case *net.UDPConn:
				udp = x
			}
			if err == nil {
				ls.sockets = append(ls.sockets, socket)
			}
			return err
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return tcp, udp, nil
}

// StopAccepting closes the sockets that accept new clients.
func (c *Capture) StopAccepting() (err error) {
	for _, ls := range c.opened {
		err = errors.Join(err, ls.stopAccepting())
	}
	return err
}

// CloseListeners closes all sockets. Accepted connections stay open.
func (c *Capture) CloseListeners() (err error) {
	for _, ls := range c.opened {
		err = errors.Join(err, ls.close())
	}
	clear(c.opened)
	return err
}

func (ls *listeners) stopAccepting() error {
	err := closeAll(ls.sockets)
	ls.sockets = nil
	return err
}

func (ls *listeners) close() error { return errors.Join(ls.stopAccepting(), closeAll(ls.helpers)) }

func closeAll(all []io.Closer) error {
	var errs []error
	for _, c := range all {
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// explain adds what the user can do to an error of a socket.
func (c *Capture) explain(err error, f v1.IPFamily) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: CAP_NET_ADMIN is needed in the network namespace, and CAP_NET_RAW except with redirect: %w", proxy.ErrUnsupported, err)
	case errors.Is(err, unix.EAFNOSUPPORT) && f == v1.IPv6Protocol:
		return fmt.Errorf("%w: the kernel has no IPv6: leave it out of Options.Families: %w", proxy.ErrUnsupported, err)
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("another backend with the identity %q seems to run in this network namespace: stop it, or set an Options.Identity "+
			"with another name and mark; if a program listens at port %d of every address, set another Options.Port: %w",
			c.Identity.Name, c.Port, err)
	}
	return err
}
