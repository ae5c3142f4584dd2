package addresses

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/internal/ipaddr"
)

// sockets are the listeners of a capture, which the engine serves.
type sockets struct {
	// listeners has nil where the host does not have the address, or a node port is taken.
	listeners map[Key]io.Closer
	// ops counts what a capture adds and removes, open the listeners of IPv4 and of IPv6.
	ops  atomic.Uint64
	open [2]atomic.Int64

	config    net.ListenConfig
	namespace *host.Sockets
	engine    *engine.Engine
	origin    engine.Origin // of all clients
	isLocal   func(netip.Addr) bool
}

// Configure adds how the engine reaches endpoints.
func (s *sockets) Configure(config *engine.Config) {
	config.IsLocal, config.Hooks.Dial = s.isLocal, s.namespace.Reach
}

// ServeBy has an engine serve the listeners.
func (s *sockets) ServeBy(e *engine.Engine) { s.engine = e }

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
		s.engine.Serve(engine.Listener{Listener: x, Origin: s.origin})
	case *net.UDPConn:
		s.engine.ServePackets(&packets{UDPConn: x, key: k, sockets: s})
	default:
		return errors.Join(errors.ErrUnsupported, socket.Close())
	}
	s.listeners[k] = socket
	s.ops.Add(1)
	s.opened(ipaddr.FamilyOf(k.addr)).Add(1)
	return nil
}

// bind opens a socket: a [net.TCPListener] or a [net.UDPConn].
func (s *sockets) bind(ctx context.Context, k Key) (io.Closer, error) {
	config := s.config
	return s.namespace.Listen(ctx, &config, k.protocol, k.at())
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
	f := engine.Flow{Protocol: v1.ProtocolUDP, Client: client, Frontend: p.key.at(), Origin: p.sockets.origin}
	if err == nil && p.sockets.engine.IsFrontend(v1.ProtocolUDP, client) {
		f.Frontend = netip.AddrPort{} // The engine drops a datagram without frontend.
	}
	return n, f, err
}

// Reply implements [engine.Replier].
func (p *packets) Reply(f engine.Flow, datagram []byte) error {
	_, err := p.WriteToUDPAddrPort(datagram, f.Client)
	return err
}
