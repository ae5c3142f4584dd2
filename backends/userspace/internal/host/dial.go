package host

import (
	"context"
	"errors"
	"net"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/proxy"
)

var errSCTP = errors.New("SCTP is not supported by the userspace backend, which has sockets for TCP and UDP only")

// CheckProtocol returns why a service port cannot be served because of its protocol.
func CheckProtocol(port *proxy.ServicePort) error {
	if port.Name.Protocol == v1.ProtocolSCTP {
		return errSCTP
	}
	return nil
}

// Reach makes a connection to an endpoint from any address of the node, as [engine.Hooks].Dial.
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
