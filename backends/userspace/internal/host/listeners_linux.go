package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/internal/pause"
)

// Listener is a pair of sockets, TCP and UDP, for clients of one origin.
type Listener struct {
	TCP    *net.TCPListener
	UDP    *PacketListener
	Origin engine.Origin
	// Destination returns the frontend to which a connection was made. It is nil if that is
	// the connection's local address.
	Destination func(net.Conn) (netip.AddrPort, error)
}

// Listeners are the sockets that a capture has opened.
type Listeners struct {
	// Served are those whose traffic is forwarded to endpoints.
	Served []Listener
	// sockets accept new clients, helpers are needed by existing connections and sessions.
	sockets, helpers []io.Closer
}

// Open opens the sockets of a listener at an address. Claim sets the socket option that
// allows binding to the address.
func (ls *Listeners) Open(ctx context.Context, s *Sockets, at netip.AddrPort, claim func(fd int) error) (l Listener, err error) {
	if l.TCP, err = whileInUse(ctx, func() (*net.TCPListener, error) { return s.listen(ctx, at, claim) }); err != nil {
		return l, fmt.Errorf("listening at %v: %w", at, err)
	}
	ls.sockets = append(ls.sockets, l.TCP)
	conn, err := whileInUse(ctx, func() (*net.UDPConn, error) { return s.listenPacket(ctx, at, claim) })
	if err != nil {
		return l, fmt.Errorf("listening at %v: %w", at, err)
	}
	ls.sockets = append(ls.sockets, conn)
	l.UDP = &PacketListener{UDPConn: conn, Frontend: OriginalDestination}
	return l, nil
}

// whileInUse calls open again for a moment as long as the address is in use: a program that this process
// starts has the sockets that an earlier backend of the process has closed, until it runs.
func whileInUse[S any](ctx context.Context, open func() (S, error)) (s S, err error) {
	const tries, delay = 50, 20 * time.Millisecond
	for range tries {
		if s, err = open(); !errors.Is(err, unix.EADDRINUSE) || pause.For(ctx, delay) != nil {
			break
		}
	}
	return s, err
}

// Serve adds a listener whose traffic is forwarded to endpoints.
func (ls *Listeners) Serve(l Listener) {
	l.UDP.origin = l.Origin
	ls.Served = append(ls.Served, l)
}

// CloseLast adds a socket that existing connections and sessions need: [Listeners.Close]
// closes it.
func (ls *Listeners) CloseLast(c io.Closer) { ls.helpers = append(ls.helpers, c) }

// StopAccepting closes the sockets that accept new clients.
func (ls *Listeners) StopAccepting() error {
	err := closeAll(ls.sockets)
	ls.sockets = nil
	return err
}

// Close closes all sockets. Accepted connections stay open.
func (ls *Listeners) Close() error { return errors.Join(ls.StopAccepting(), closeAll(ls.helpers)) }

func closeAll(all []io.Closer) error {
	var errs []error
	for _, c := range all {
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
