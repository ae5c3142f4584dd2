package host

import (
	"context"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
)

// NodeDialer reaches endpoints from any address of the node. The capture may capture its
// packets, like any traffic of the node. It therefore refuses endpoints that are frontends.
type NodeDialer struct {
	*Frontends

	sockets *Sockets
}

// NewNodeDialer returns a dialer without frontends; [Frontends.Follow] adds them.
func NewNodeDialer(s *Sockets) *NodeDialer {
	return &NodeDialer{Frontends: NewFrontends(s.isLocal), sockets: s}
}

// Dial makes a connection, as [engine.Hooks].Dial.
func (d *NodeDialer) Dial(ctx context.Context, to engine.Dial) (conn net.Conn, err error) {
	if err := d.Refuse(to); err != nil {
		return nil, err
	}
	err = d.sockets.Dial(&net.Dialer{}, func(by *net.Dialer) error {
		conn, err = engine.DialBy(ctx, by, to)
		return err
	})
	return conn, err
}

// isLocal reports whether an address is one of the node's own.
func (s *Sockets) isLocal(a netip.Addr) bool {
	kind, _ := s.route(a)
	return kind == unix.RTN_LOCAL
}
