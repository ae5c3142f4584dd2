//go:build !linux

package tcpconn

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

// Supported says whether this system has connections of this package.
const Supported = false

// Poller does nothing on this system: connections stay those of package net.
type Poller struct{}

// Close does nothing.
func (p *Poller) Close() error { return nil }

// Listen returns l.
func (p *Poller) Listen(l *net.TCPListener) (net.Listener, error) { return l, nil }

// Connect fails with [errors.ErrUnsupported].
func (p *Poller) Connect(context.Context, int, netip.AddrPort, time.Duration) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}

// Adopt returns c.
func (p *Poller) Adopt(c net.Conn) net.Conn { return c }

// Begin fails with [errors.ErrUnsupported].
func Begin(netip.AddrPort, netip.AddrPort, ...Option) (fd int, err error) {
	return -1, errors.ErrUnsupported
}

// Exchange does nothing.
func Exchange(*[2]Direction, Buffers, Owner) error { return nil }
