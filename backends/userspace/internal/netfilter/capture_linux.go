package netfilter

import (
	"context"
	"errors"
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/internal/kernel/nft"
)

// Capture is a [backends.Target]: the tables, and the routing that they need. Closing it closes
// the connection to the kernel; tables and routing stay.
type Capture struct {
	*kernel

	// Dialer reaches endpoints from the addresses of clients. It is nil for redirect:
	// there, endpoints see the node.
	Dialer *Dialer
}

// New returns a capture in the network namespace of the calling thread: redirect if that is
// set, otherwise TPROXY.
func New(c *host.Config, redirect bool) (*Capture, error) {
	conn, err := nft.Open(c.Identity.Name)
	if err != nil {
		return nil, err
	}
	events, err := listenRouting()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	k := &kernel{renderer: renderer{c, redirect}, Conn: conn, events: events}
	k.routes = &routes{&k.renderer, c.Sockets.Netlink()}
	if redirect {
		return &Capture{kernel: k}, nil
	}
	return &Capture{k, newDialer(c.Sockets)}, nil
}

// Listen opens the sockets of an IP family.
func (c *Capture) Listen(ctx context.Context, f v1.IPFamily, ls *host.Listeners) error {
	conntrack, err := newConntrack(c.Sockets)
	if err != nil {
		return err
	}
	ls.CloseLast(conntrack)
	var replier *host.Replier
	if !c.redirect {
		if replier, err = c.Sockets.Replier(f); err != nil {
			return err
		}
		ls.CloseLast(replier)
	}
	for _, x := range c.listeners() {
		at, claim := c.address(x, f), host.Transparent
		if c.isTranslated(x) {
			claim = host.FreeBind
		}
		l, err := ls.Open(ctx, c.Sockets, at, claim)
		if err != nil {
			return err
		}
		l.Origin, l.UDP.Replier = x.origin(), replier
		if c.isTranslated(x) {
			l.Destination, l.UDP.Replier = translatedFrom, sameSocket{l.UDP.UDPConn}
			l.UDP.Frontend = func(client netip.AddrPort, _ []byte) (netip.AddrPort, bool) {
				to, err := conntrack.frontend(client, at)
				return to, err == nil // a datagram without a conntrack entry is dropped
			}
		}
		ls.Serve(l)
	}
	return nil
}
