package engine

import (
	"errors"
	"io"
	"net"

	v1 "k8s.io/api/core/v1"
)

// PacketDoor is where datagrams come in, and answers go out.
type PacketDoor interface {
	Replier
	// Receive waits for a datagram, and gives its length in the buffer and
	// the flow that it is of. Once the door is closed, it fails with
	// [net.ErrClosed].
	Receive(buf []byte) (int, Flow, error)
	io.Closer
}

// ServePackets takes the datagrams of a door to endpoints, until the engine or
// the door is closed. Other errors of the door are counted, and it is asked again
// after a while, the longer the more often it has failed. ServePackets closes the
// door.
func (e *Engine) ServePackets(d PacketDoor) error {
	if !e.tasks.adopt(d) {
		return net.ErrClosed
	}
	defer e.tasks.release(d)
	defer d.Close() //nolint:errcheck // what matters is that it is closed
	buf := make([]byte, maxDatagram)
	var pause backoff
	for {
		n, f, err := d.Receive(buf)
		switch {
		case err == nil:
			pause = 0
			e.Datagram(f, buf[:n], d)
		case e.tasks.ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			e.report(err)
			pause.wait(e.tasks.ctx)
		}
	}
}

// NewPacketDoor gives a door for the datagrams that are sent to a socket.
func NewPacketDoor(conn *net.UDPConn, origin Origin) PacketDoor {
	return socketDoor{conn, Flow{Protocol: v1.ProtocolUDP, Frontend: addrOf(conn.LocalAddr()), Origin: origin}}
}

type socketDoor struct {
	*net.UDPConn

	flow Flow // of each datagram, but for the client
}

// Receive implements [PacketDoor].
func (s socketDoor) Receive(buf []byte) (int, Flow, error) {
	n, client, err := s.ReadFromUDPAddrPort(buf)
	f := s.flow
	f.Client = unmap(client)
	return n, f, err
}

// Reply implements [Replier].
func (s socketDoor) Reply(f Flow, datagram []byte) error {
	_, err := s.WriteToUDPAddrPort(datagram, f.Client)
	return err
}
