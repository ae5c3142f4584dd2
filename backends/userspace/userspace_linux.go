package userspace

import (
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
	"github.com/vipkit/vipkit/backends/userspace/internal/netfilter"
	"github.com/vipkit/vipkit/proxy"
)

// systemCapture is the default capture.
const systemCapture = TPROXY

// target is the target of a capture of Linux.
type target = backends.Target[netfilter.Key, netfilter.Value]

// openSystem returns a backend with a capture of Linux.
func (o *Options) openSystem() (*Backend, error) {
	return o.openNetfilter(func(c *netfilter.Capture) target { return c })
}

// openNetfilter does that. Tests may have another target around the capture.
func (o *Options) openNetfilter(around func(*netfilter.Capture) target) (*Backend, error) {
	c := host.Config{
		Identity: o.Identity, Families: o.Families, Port: o.Port,
		AwaitEndpoints: o.Hooks.FirstConnection != nil,
	}
	var err error
	if c.Sockets, err = host.OpenSockets(); err != nil {
		return nil, fmt.Errorf("%w: %w", proxy.ErrUnsupported, err)
	}
	if o.Capture != TPROXY {
		c.Node = host.NewNodeDialer(c.Sockets)
	}
	captured, err := netfilter.New(&c, o.Capture == Redirect)
	if err != nil {
		return nil, errors.Join(err, c.Sockets.Close())
	}
	inner, err := kinds.Among(backends.New(captured.Render, around(captured)), o.Identity, kinds.Userspace)
	if err != nil {
		return nil, err
	}
	b := &Backend{inner: inner}
	var d dialer = captured.Dialer
	if o.Capture == Redirect {
		d = c.Node
	}
	config := o.engineConfig(d)
	if o.Capture == TPROXY {
		config.Link = c.Sockets.Link
	}
	if config.Descriptors, err = descriptorLimit(); err == nil {
		b.engine, err = engine.New(config)
	}
	if err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	b.listeners = &sharedListeners{config: &c, capture: captured, engine: b.engine, served: &b.wg, opened: map[v1.IPFamily]*host.Listeners{}}
	return b, nil
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
