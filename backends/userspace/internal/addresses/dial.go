package addresses

import (
	"context"
	"net"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
)

// Dial makes a connection to an endpoint, as [engine.Hooks].Dial. It refuses endpoints that are
// frontends.
func (c *Capture) Dial(ctx context.Context, to engine.Dial) (net.Conn, error) {
	if err := c.Refuse(to); err != nil {
		return nil, err
	}
	return c.sockets.Dial(ctx, to)
}
