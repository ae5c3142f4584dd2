package netns

import (
	"context"
	"net"
)

// Listen is [net.Listen] in the namespace. The address is a literal one. The
// listener, and what it accepts, can be used from anywhere.
func (n *NS) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	return within(n, func() (net.Listener, error) {
		return new(net.ListenConfig).Listen(ctx, network, address)
	})
}

// ListenPacket is [net.ListenPacket] in the namespace. The address is a literal
// one. The connection can be used from anywhere.
func (n *NS) ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	return within(n, func() (net.PacketConn, error) {
		return new(net.ListenConfig).ListenPacket(ctx, network, address)
	})
}

// Dial is [net.Dial] in the namespace. The address is a literal one. The
// connection can be used from anywhere. While it is being made it occupies a
// thread.
func (n *NS) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return within(n, func() (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	})
}

func within[T any](n *NS, f func() (T, error)) (made T, err error) {
	err = n.Do(func() (err error) {
		made, err = f()
		return err
	})
	return made, err
}
