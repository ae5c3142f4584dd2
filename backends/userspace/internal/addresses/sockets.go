package addresses

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/internal/ipaddr"
)

// sockets are the listeners of a capture, which the engine serves.
type sockets struct {
	*host.Frontends

	// listeners has nil where the host does not have the address, or a node port is taken.
	listeners map[Key]io.Closer
	// ops counts what a capture adds and removes, open the listeners of IPv4 and of IPv6.
	ops  atomic.Uint64
	open [2]atomic.Int64

	config    net.ListenConfig
	namespace Namespace
	engine    *engine.Engine
	served    *sync.WaitGroup
	// originOf returns the origin of a client of a listener.
	originOf func(k Key, client netip.Addr) engine.Origin
}

// ServeBy has an engine serve the listeners, by goroutines that the group counts.
func (s *sockets) ServeBy(e *engine.Engine, served *sync.WaitGroup) { s.engine, s.served = e, served }

// Open does nothing: each frontend has a listener of its own, which a commit opens.
func (*sockets) Open(context.Context, bool) error { return nil }

// StopAccepting closes all listeners. Connections stay open.
func (s *sockets) StopAccepting() error { return s.CloseListeners() }

// CloseListeners closes all listeners.
func (s *sockets) CloseListeners() error {
	for k := range s.listeners {
		s.unlisten(k)
	}
	return nil
}

// Listening returns how many listeners are open in an IP family. It may be called at any time.
func (s *sockets) Listening(family v1.IPFamily) int { return int(s.opened(family).Load()) }

func (s *sockets) opened(family v1.IPFamily) *atomic.Int64 {
	if family == v1.IPv6Protocol {
		return &s.open[1]
	}
	return &s.open[0]
}

// unlisten closes a listener, and forgets it.
func (s *sockets) unlisten(k Key) {
	if l := s.listeners[k]; l != nil {
		_ = l.Close() // The socket is closed, whatever the error.
		s.ops.Add(1)
		s.opened(ipaddr.FamilyOf(k.addr)).Add(-1)
	}
	delete(s.listeners, k)
}

// listen opens the socket of a frontend.
func (s *sockets) listen(ctx context.Context, k Key) error {
	socket, err := s.bind(ctx, k)
	if err != nil {
		return err
	}
	switch x := socket.(type) {
	case *net.TCPListener:
		by := engine.Listener{Listener: x, OriginOf: func(client netip.Addr) engine.Origin { return s.originOf(k, client) }}
		s.served.Go(func() { _ = s.engine.Serve(by) }) // returns when the listener is closed
	case *net.UDPConn:
		// ServePackets returns when the listener is closed.
		s.served.Go(func() { _ = s.engine.ServePackets(&packets{UDPConn: x, key: k, sockets: s}) })
	default:
		return errors.Join(errors.ErrUnsupported, socket.Close())
	}
	s.listeners[k] = socket
	s.ops.Add(1)
	s.opened(ipaddr.FamilyOf(k.addr)).Add(1)
	return nil
}

// bind opens a socket: a [net.TCPListener] or a [net.UDPConn].
func (s *sockets) bind(ctx context.Context, k Key) (socket io.Closer, err error) {
	err = s.namespace.Do(func() error {
		socket, err = s.bindHere(ctx, k)
		return err
	})
	return socket, err
}

func (s *sockets) bindHere(ctx context.Context, k Key) (io.Closer, error) {
	version := "4"
	if ipaddr.FamilyOf(k.addr) == v1.IPv6Protocol {
		version = "6"
	}
	config := s.config
	if k.protocol == v1.ProtocolUDP {
		return config.ListenPacket(ctx, "udp"+version, k.at().String())
	}
	config.SetMultipathTCP(false) // endpoints would not see more than one path
	return config.Listen(ctx, "tcp"+version, k.at().String())
}

// packets receives the datagrams to a frontend.
type packets struct {
	*net.UDPConn
	key     Key
	sockets *sockets
}

// Receive implements [engine.PacketListener]. It drops datagrams from frontends: the answers would
// arrive here again, and two Services that answer any datagram would answer each other without
// end.
func (p *packets) Receive(buf []byte) (int, engine.Flow, error) {
	n, from, err := p.ReadFromUDPAddrPort(buf)
	client := ipaddr.Unmap(from)
	f := engine.Flow{Protocol: v1.ProtocolUDP, Client: client, Origin: p.sockets.originOf(p.key, client.Addr())}
	if err == nil && !p.sockets.IsFrontend(v1.ProtocolUDP, client) {
		f.Frontend = p.key.at() // The engine drops a datagram without frontend.
	}
	return n, f, err
}

// Reply implements [engine.Replier].
func (p *packets) Reply(f engine.Flow, datagram []byte) error {
	_, err := p.WriteToUDPAddrPort(datagram, f.Client)
	return err
}

// Dial makes a connection to an endpoint, as [engine.Hooks].Dial.
func (s *sockets) Dial(ctx context.Context, to engine.Dial) (conn net.Conn, err error) {
	err = s.namespace.Dial(&net.Dialer{}, func(by *net.Dialer) error {
		conn, err = engine.DialBy(ctx, by, to)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := reportRefusals(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Namespace is a network namespace in which sockets are made.
type Namespace interface {
	// Do calls a function that makes sockets.
	Do(f func() error) error
	// Dial has dial make one connection by a dialer.
	Dial(d *net.Dialer, dial func(*net.Dialer) error) error
	io.Closer
}

// Anywhere is the namespace of a system that has one alone.
type Anywhere struct{}

// Do implements [Namespace].
func (Anywhere) Do(f func() error) error { return f() }

// Dial implements [Namespace].
func (Anywhere) Dial(d *net.Dialer, dial func(*net.Dialer) error) error { return dial(d) }

// Close implements [Namespace].
func (Anywhere) Close() error { return nil }

func orAnywhere(n Namespace) Namespace {
	if n == nil {
		return Anywhere{}
	}
	return n
}
