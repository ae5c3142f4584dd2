package userspace

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/backends/userspace/internal/netfilter"
	"github.com/vipkit/vipkit/proxy"
)

// sharedListeners are the listeners of a capture that needs a fixed number of them.
type sharedListeners struct {
	config  *host.Config
	capture *netfilter.Capture
	engine  *engine.Engine
	served  *sync.WaitGroup
	opened  map[v1.IPFamily]*host.Listeners
}

// Open implements [listeners].
func (l *sharedListeners) Open(ctx context.Context, again bool) error {
	if again {
		l.config.Look()
	}
	for _, f := range l.config.Served() {
		if l.opened[f] != nil {
			continue
		}
		ls := &host.Listeners{}
		if err := l.open(ctx, f, ls); err != nil {
			return errors.Join(fmt.Errorf("userspace: %w", err), ls.Close())
		}
		l.opened[f] = ls
	}
	return nil
}

// open opens the listeners of one IP family, and has the engine serve them.
func (l *sharedListeners) open(ctx context.Context, f v1.IPFamily, ls *host.Listeners) error {
	if err := l.capture.Listen(ctx, f, ls); err != nil {
		return l.explainSocket(err, f)
	}
	for _, x := range ls.Served {
		by := engine.Listener{Listener: x.TCP, Origin: x.Origin, Destination: x.Destination}
		l.served.Go(func() { _ = l.engine.Serve(by) }) // returns when the listener is closed
		l.served.Go(func() { _ = l.engine.ServePackets(x.UDP) })
	}
	return nil
}

// Follow implements [listeners].
func (l *sharedListeners) Follow(old, next proxy.Snapshot) {
	if l.config.Node != nil {
		l.config.Node.Follow(old, next)
	}
}

// StopAccepting implements [listeners].
func (l *sharedListeners) StopAccepting() (err error) {
	for _, ls := range l.opened {
		err = errors.Join(err, ls.StopAccepting())
	}
	return err
}

// CloseListeners implements [listeners].
func (l *sharedListeners) CloseListeners() (err error) {
	for _, ls := range l.opened {
		err = errors.Join(err, ls.Close())
	}
	clear(l.opened)
	return err
}

// explainSocket adds what the user can do to an error of a socket.
func (l *sharedListeners) explainSocket(err error, f v1.IPFamily) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: CAP_NET_ADMIN is needed in the network namespace, and CAP_NET_RAW except with redirect: %w", proxy.ErrUnsupported, err)
	case errors.Is(err, unix.EAFNOSUPPORT) && f == v1.IPv6Protocol:
		return fmt.Errorf("%w: the kernel has no IPv6: leave it out of Options.Families: %w", proxy.ErrUnsupported, err)
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("another backend with the identity %q seems to run in this network namespace: stop it, or set an Options.Identity "+
			"with another name and mark; if a program listens at port %d of every address, set another Options.Port: %w",
			l.config.Identity.Name, l.config.Port, err)
	}
	return err
}
