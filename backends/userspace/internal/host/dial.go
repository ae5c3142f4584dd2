package host

import (
	"context"
	"errors"
	"net"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
)

// NodeDialer reaches endpoints from any address of the node. The capture may capture its
// packets, like any traffic of the node. It therefore refuses endpoints that are frontends.
type NodeDialer struct {
	*Frontends
	*Sockets
}

// Dial makes a connection, as [engine.Hooks].Dial.
func (d NodeDialer) Dial(ctx context.Context, to engine.Dial) (net.Conn, error) {
	if err := d.Refuse(to); err != nil {
		return nil, err
	}
	return d.Reach(ctx, to)
}

// Reach makes a connection to any endpoint, as [engine.Hooks].Dial.
func (s *Sockets) Reach(ctx context.Context, to engine.Dial) (conn net.Conn, err error) {
	err = s.Dial(&net.Dialer{}, func(by *net.Dialer) error {
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
