package addresses

import (
	"context"
	"errors"
	"net"
	"strings"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
)

// Dial makes a connection to an endpoint, as [engine.Hooks].Dial. It refuses endpoints that are
// frontends.
func (c *Capture) Dial(ctx context.Context, to engine.Dial) (net.Conn, error) {
	if err := c.Refuse(to); err != nil {
		return nil, err
	}
	dialer := net.Dialer{KeepAlive: -1} // not needed: the cluster removes dead endpoints
	conn, err := dialer.DialContext(ctx, strings.ToLower(string(to.Protocol)), to.To.String())
	if err != nil {
		return nil, err
	}
	if err := reportRefusals(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}
