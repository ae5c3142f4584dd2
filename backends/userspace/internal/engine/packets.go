package engine

import (
	"errors"
	"net"

	v1 "k8s.io/api/core/v1"
)

// ServePackets takes the datagrams that come to a socket to endpoints, until the
// engine is closed or the socket fails. The frontend is the address of the
// socket. It closes the socket.
func (e *Engine) ServePackets(conn *net.UDPConn, origin Origin) error {
	if !e.tasks.adopt(conn) {
		return net.ErrClosed
	}
	defer e.tasks.release(conn)
	defer conn.Close() //nolint:errcheck // what matters is that it is closed
	frontend := addrOf(conn.LocalAddr())
	buf := make([]byte, maxDatagram)
	for {
		n, client, err := conn.ReadFromUDPAddrPort(buf)
		switch {
		case err == nil:
			f := Flow{Protocol: v1.ProtocolUDP, Client: unmap(client), Frontend: frontend, Origin: origin}
			e.Datagram(f, buf[:n], socketReplier{conn})
		case e.tasks.ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		}
	}
}

// socketReplier answers from the socket that was asked.
type socketReplier struct{ conn *net.UDPConn }

// Reply implements [Replier].
func (r socketReplier) Reply(f Flow, datagram []byte) error {
	_, err := r.conn.WriteToUDPAddrPort(datagram, f.Client)
	return err
}
