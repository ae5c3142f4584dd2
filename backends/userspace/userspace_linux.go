package userspace

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/backends/userspace/internal/localroutes"
	"github.com/vipkit/vipkit/backends/userspace/internal/netfilter"
	"github.com/vipkit/vipkit/proxy"
)

// systemCapture is the default capture.
const systemCapture = TPROXY

// hostCapture is a capture whose listeners all Services share.
type hostCapture interface {
	capture
	// Listen opens the listeners of an IP family.
	Listen(context.Context, v1.IPFamily, *host.Listeners) error
}

// openSystem returns a backend with a capture of Linux.
func (o *Options) openSystem() (*Backend, error) {
	c := host.Config{
		Identity: o.Identity, Families: o.Families, Port: o.Port,
		AwaitEndpoints: o.Hooks.FirstConnection != nil,
	}
	var err error
	if c.Sockets, err = host.OpenSockets(); err != nil {
		return nil, fmt.Errorf("%w: %w", proxy.ErrUnsupported, err)
	}
	own, err := kinds.Open(o.Identity, kinds.Userspace)
	if err != nil {
		return nil, errors.Join(err, c.Sockets.Close())
	}
	b, err := o.start(&c)
	if err != nil {
		return nil, errors.Join(err, own.Close(), c.Sockets.Close())
	}
	b.instance = own
	if o.Capture == LocalRoutes {
		own.WithoutNetfilter()
	}
	return b, nil
}

// start opens the capture and the engine.
func (o *Options) start(c *host.Config) (*Backend, error) {
	if o.Capture != TPROXY {
		c.Node = host.NewNodeDialer(c.Sockets)
	}
	b := &Backend{last: c.Sockets, tracked: o.Capture != LocalRoutes}
	d, shared, err := b.newCapture(o.Capture, c)
	if err != nil {
		return nil, err
	}
	config := o.engineConfig(d)
	if o.Capture == TPROXY {
		config.Link = c.Sockets.Link
	}
	if config.Descriptors, err = descriptorLimit(); err == nil {
		b.engine, err = engine.New(config)
	}
	if err != nil {
		return nil, errors.Join(err, b.capture.Close())
	}
	b.listeners = &sharedListeners{config: c, capture: shared, engine: b.engine, served: &b.wg, opened: map[v1.IPFamily]*host.Listeners{}}
	return b, nil
}

// newCapture opens the capture, and returns the dialer that goes with it, and the capture.
func (b *Backend) newCapture(by Capture, config *host.Config) (dialer, hostCapture, error) {
	if by == LocalRoutes {
		c, err := localroutes.New(config)
		if err != nil {
			return nil, nil, err
		}
		b.capture, b.inner = c, backends.New(c.Render, backends.Target[localroutes.Key, localroutes.Value](c))
		return config.Node, c, nil
	}
	c, err := netfilter.New(config, by == Redirect)
	if err != nil {
		return nil, nil, err
	}
	b.capture, b.inner = c, backends.New(c.Render, backends.Target[netfilter.Key, netfilter.Value](c))
	if by == Redirect {
		return config.Node, c, nil
	}
	return c.Dialer, c, nil
}

// descriptorLimit returns how many file descriptors the process may open. At the start, the Go
// runtime has raised the soft limit to the hard limit.
func descriptorLimit() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, os.NewSyscallError("getrlimit", err)
	}
	return int(min(limit.Cur, math.MaxInt32)), nil
}
