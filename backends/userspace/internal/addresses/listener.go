package addresses

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/backends/userspace/internal/neterr"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/pause"
)

// listener is an open socket of a frontend.
type listener struct{ io.Closer }

// Open does nothing: each frontend has listeners of its own, which Commit opens.
func (c *Capture) Open(context.Context) error { return nil }

// open opens the listeners that operations add. After an error it has opened none.
func (c *Capture) open(ctx context.Context, ops []op, present map[netip.Addr]bool) error {
	var opened []Key
	end := time.Now().Add(c.Usable)
	for i := range ops {
		o := &ops[i]
		if o.Key.isAddress() || o.Kind != backends.Add {
			continue
		}
		// The node may lack one of its addresses, but not one that was added for Services.
		if !present[o.Key.addr] && !c.needed[o.Key.addr] {
			c.listeners[o.Key] = nil
			opened = append(opened, o.Key)
			continue
		}
		err := c.listen(ctx, o.Key, end)
		if err != nil && isTaken(err) && !c.isOfService(ops, o.Key.addr) {
			c.listeners[o.Key] = nil
			c.taken.put(o.Key, explain(o.Key, err))
			err = nil
		}
		if err != nil {
			c.refused[o.Key.addr] = true
			for _, k := range opened {
				c.unlisten(k)
			}
			return explain(o.Key, err)
		}
		opened = append(opened, o.Key)
	}
	return nil
}

// isOfService reports whether an address is that of a Service, also of one that operations add. All
// others are for node ports.
func (c *Capture) isOfService(ops []op, a netip.Addr) bool {
	return c.needed[a] || slices.ContainsFunc(ops, func(o op) bool { return o.Kind == backends.Add && o.Key == Key{addr: a} })
}

// explain adds what an error of a listener means.
func explain(k Key, err error) error {
	err = fmt.Errorf("listening at %v/%s: %w", k.at(), k.protocol, err)
	switch cause := neterr.Of(err); {
	case neterr.IsDenied(err):
		return fmt.Errorf("the system denies that, as at ports that it reserves: %w", err)
	case cause == neterr.Shortage:
		return fmt.Errorf("%w: %w", backends.ErrExhausted, err)
	case cause == neterr.InUse:
		return fmt.Errorf("another program of the node listens there: %w", err)
	default:
		return err
	}
}

// listen opens the socket of a frontend, and has the engine serve it. An address that was just
// added may need some time until the system has found that no other host uses it.
func (c *Capture) listen(ctx context.Context, k Key, end time.Time) error {
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, time.Second/2) {
		err := c.listenNow(ctx, k)
		if err == nil {
			c.ops.Add(1)
			return nil
		}
		if neterr.Of(err) != neterr.NotLocal || time.Now().After(end) {
			return err
		}
		if err := pause.For(ctx, delay); err != nil {
			return err
		}
	}
}

func (c *Capture) listenNow(ctx context.Context, k Key) error {
	socket, err := k.bind(ctx)
	if err != nil {
		return err
	}
	switch s := socket.(type) {
	case *net.TCPListener:
		return c.serve(k, s)
	case *net.UDPConn:
		c.servePackets(k, s)
		return nil
	}
	return errors.Join(errors.ErrUnsupported, socket.Close())
}

// bind opens the socket of a frontend: a [net.TCPListener] or a [net.UDPConn].
func (k Key) bind(ctx context.Context) (io.Closer, error) {
	version := "4"
	if ipaddr.FamilyOf(k.addr) == v1.IPv6Protocol {
		version = "6"
	}
	var config net.ListenConfig
	if k.protocol == v1.ProtocolUDP {
		return config.ListenPacket(ctx, "udp"+version, k.at().String())
	}
	config.SetMultipathTCP(false) // endpoints would not see more than one path
	return config.Listen(ctx, "tcp"+version, k.at().String())
}

func (c *Capture) serve(k Key, tcp *net.TCPListener) error {
	accepting, err := c.engine.Listen(tcp)
	if err != nil {
		return errors.Join(err, tcp.Close())
	}
	c.listeners[k] = &listener{accepting}
	// Serve returns when the listener is closed.
	c.served.Go(func() { _ = c.engine.Serve(engine.Listener{Listener: accepting, OriginOf: k.originOf}) })
	return nil
}

func (c *Capture) servePackets(k Key, udp *net.UDPConn) {
	c.listeners[k] = &listener{udp}
	c.served.Go(func() { _ = c.engine.ServePackets(&packets{UDPConn: udp, key: k, capture: c}) })
}

// originOf returns the origin of a client. Only the node itself can have the address of a
// listener, and the system prefers it as the source of connections to it.
func (k Key) originOf(client netip.Addr) engine.Origin {
	if client == k.addr {
		return engine.Node
	}
	return engine.ByAddress
}

// packets receives the datagrams to a frontend.
type packets struct {
	*net.UDPConn
	key     Key
	capture *Capture
}

// Receive implements [engine.PacketListener]. It drops datagrams from frontends: the answers would
// arrive here again, and two Services that answer any datagram would answer each other without
// end.
func (p *packets) Receive(buf []byte) (int, engine.Flow, error) {
	n, from, err := p.ReadFromUDPAddrPort(buf)
	client := netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	f := engine.Flow{Protocol: v1.ProtocolUDP, Client: client, Origin: p.key.originOf(client.Addr())}
	if err == nil && !p.capture.IsFrontend(v1.ProtocolUDP, client) {
		f.Frontend = p.key.at() // The engine drops a datagram without frontend.
	}
	return n, f, err
}

// Reply implements [engine.Replier].
func (p *packets) Reply(f engine.Flow, datagram []byte) error {
	_, err := p.WriteToUDPAddrPort(datagram, f.Client)
	return err
}

// unlisten closes a listener, and forgets it. Its connections stay open.
func (c *Capture) unlisten(k Key) {
	if l := c.listeners[k]; l != nil {
		_ = l.Close() // The socket is closed, whatever the error.
		c.ops.Add(1)
	}
	delete(c.listeners, k)
	c.taken.drop(k)
}

// StopAccepting closes all listeners.
func (c *Capture) StopAccepting() error { return c.CloseListeners() }

// CloseListeners closes all listeners. Connections stay open, and addresses stay on the
// interface.
func (c *Capture) CloseListeners() error {
	for k := range c.listeners {
		c.unlisten(k)
	}
	return nil
}

// Close closes all listeners.
func (c *Capture) Close() error { return c.CloseListeners() }

// isOthers reports whether an error says that another program has added an address.
func isOthers(err error) bool { return errors.Is(err, fs.ErrExist) }
