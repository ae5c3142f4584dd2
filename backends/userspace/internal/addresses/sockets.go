package addresses

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/internal/ipaddr"
)

// listener is an open socket of a frontend.
type listener struct{ io.Closer }

// sockets opens listeners, and has the engine serve them.
type sockets struct {
	*host.Frontends

	config    net.ListenConfig
	namespace Namespace
	engine    *engine.Engine
	served    *sync.WaitGroup
	// originOf returns the origin of a client of a listener.
	originOf func(k Key, client netip.Addr) engine.Origin
}

// ServeBy has an engine serve the listeners, by goroutines that the group counts.
func (s *sockets) ServeBy(e *engine.Engine, served *sync.WaitGroup) { s.engine, s.served = e, served }

// listen opens the socket of a frontend.
func (s *sockets) listen(ctx context.Context, k Key) (*listener, error) {
	socket, err := s.bind(ctx, k)
	if err != nil {
		return nil, err
	}
	switch x := socket.(type) {
	case *net.TCPListener:
		by := engine.Listener{Listener: x, OriginOf: func(client netip.Addr) engine.Origin { return s.originOf(k, client) }}
		s.served.Go(func() { _ = s.engine.Serve(by) }) // returns when the listener is closed
		return &listener{x}, nil
	case *net.UDPConn:
		// ServePackets returns when the listener is closed.
		s.served.Go(func() { _ = s.engine.ServePackets(&packets{UDPConn: x, key: k, sockets: s}) })
		return &listener{x}, nil
	}
	return nil, errors.Join(errors.ErrUnsupported, socket.Close())
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
	client := netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
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
