package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// open opens all doors of the backend.
func (b *Backend) open(ctx context.Context) error {
	if b.doors != nil {
		return nil
	}
	o := &opening{Backend: b}
	for _, fam := range b.renderer.families() {
		if err := o.family(ctx, fam); err != nil {
			return errors.Join(fmt.Errorf("userspace: %w", b.explainSocket(err, fam)), o.close())
		}
	}
	for _, start := range o.starts {
		b.wg.Go(start)
	}
	b.doors = &o.opened
	return nil
}

type closer interface{ Close() error }

// opened is what is open: where clients come in, and what helps to serve them.
type opened struct{ listeners, helpers []closer }

// opening is what has been opened so far.
type opening struct {
	*Backend
	opened

	starts  []func()
	replier *replier
	tracked *tracked
}

// family opens the doors of a family.
func (o *opening) family(ctx context.Context, fam nfnetlink.Family) error {
	if err := o.help(fam); err != nil {
		return err
	}
	if k, ok := o.kernel.(*local); ok {
		if err := o.localDoors(ctx, fam, k.lookup); err != nil {
			return fmt.Errorf("listening at %v: %w", doorPod.address(&o.options, fam), err)
		}
		return nil
	}
	for _, d := range doors(o.options.Capture) {
		if err := o.door(ctx, d, fam); err != nil {
			return fmt.Errorf("listening at %v: %w", d.address(&o.options, fam), err)
		}
	}
	return nil
}

// explainSocket puts an error of sockets in terms that callers can act on.
func (b *Backend) explainSocket(err error, fam nfnetlink.Family) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: CAP_NET_ADMIN and CAP_NET_RAW are needed in the network namespace: %w", proxy.ErrUnsupported, err)
	case errors.Is(err, unix.EAFNOSUPPORT) && fam == nfnetlink.IPv6:
		return fmt.Errorf("%w: the kernel has no IPv6, which Options.Families can leave out: %w", proxy.ErrUnsupported, err)
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("another backend of the identity %q seems to be running in this network namespace: it must end, or Options.Identity "+
			"be another one, in its name and its mark; where a program listens at port %d of every address, Options.Port can be another: %w",
			b.options.Identity.Name, b.options.Port, err)
	}
	return err
}

// help opens what the doors of a family share.
func (o *opening) help(fam nfnetlink.Family) (err error) {
	if o.options.Capture != LocalRoutes {
		if o.tracked, err = o.sockets.tracked(); err != nil {
			return err
		}
		o.helpers = append(o.helpers, o.tracked)
	}
	if o.options.Capture == Redirect {
		return nil
	}
	if o.replier, err = o.sockets.replier(fam); err == nil {
		o.helpers = append(o.helpers, o.replier)
	}
	return err
}

func (o *opened) close() error { return errors.Join(closeAll(o.listeners), closeAll(o.helpers)) }

func closeAll(all []closer) error {
	var errs []error
	for _, c := range all {
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// both opens the sockets of a door, for connections and for datagrams.
func (o *opening) both(ctx context.Context, at netip.AddrPort, claim func(fd int) error) (l *net.TCPListener, p *net.UDPConn, err error) {
	if l, err = o.sockets.listen(ctx, at, claim); err != nil {
		return nil, nil, err
	}
	o.listeners = append(o.listeners, l)
	if p, err = o.sockets.packets(ctx, at, claim); err != nil {
		return nil, nil, err
	}
	o.listeners = append(o.listeners, p)
	return l, p, nil
}

func (o *opening) door(ctx context.Context, d door, fam nfnetlink.Family) error {
	at := d.address(&o.options, fam)
	if !d.isTranslated(o.options.Capture) {
		l, p, err := o.both(ctx, at, makeTransparent)
		if err != nil {
			return err
		}
		return o.start(l, nil, &packetDoor{UDPConn: p, Replier: o.replier, origin: d.origin(), frontend: frontendAsSent})
	}
	l, p, err := o.both(ctx, at, makeFree)
	if err != nil {
		return err
	}
	t := o.tracked
	return o.start(l, translatedFrom, &packetDoor{UDPConn: p, Replier: asAsked{p}, origin: d.origin(),
		frontend: func(client netip.AddrPort, _ []byte) (netip.AddrPort, bool) {
			to, err := t.frontend(client, at)
			return to, err == nil // a datagram of no known flow is lost
		}})
}

// start has the engine serve a door. Destination tells what a connection asked for, if
// its local address does not.
func (o *opening) start(l *net.TCPListener, destination func(net.Conn) (netip.AddrPort, error), p *packetDoor) error {
	quick, err := o.engine.Listener(l)
	if err != nil {
		return err
	}
	o.listeners = append(o.listeners, quick)
	door := engine.Door{Listener: quick, Origin: p.origin, Destination: destination}
	o.starts = append(o.starts,
		func() { _ = o.engine.Serve(door) }, // it ends when the door is closed
		func() { _ = o.engine.ServePackets(p) })
	return nil
}
