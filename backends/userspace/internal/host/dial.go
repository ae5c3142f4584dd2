package host

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"

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

// Listen opens a socket: a [net.TCPListener], or a [net.UDPConn].
func (s *Sockets) Listen(ctx context.Context, config *net.ListenConfig, protocol v1.Protocol, at netip.AddrPort) (socket io.Closer, err error) {
	config.SetMultipathTCP(false) // Endpoints would not see more than one path, and such sockets have no SO_ORIGINAL_DST.
	err = s.Do(func() error {
		if protocol == v1.ProtocolUDP {
			socket, err = config.ListenPacket(ctx, "udp", at.String())
		} else {
			socket, err = config.Listen(ctx, "tcp", at.String())
		}
		return err
	})
	return socket, err
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
