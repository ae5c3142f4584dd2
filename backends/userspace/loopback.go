package userspace

import (
	"errors"
	"io"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/addresses"
	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
)

// loopbackSystem is what the capture [Loopback] needs of the system.
type loopbackSystem struct {
	io.Closer

	// dialer reaches endpoints; nil for the usual one.
	dialer dialer
	// inside calls a function in the network namespace of the backend; nil if the system has none.
	inside func(func() error) error
}

// openLoopback returns a backend with the capture [Loopback]. Half of the descriptors that it may
// use are for listeners, and half for the engine.
func (o *Options) openLoopback() (*Backend, error) {
	limit, err := descriptorLimit()
	if err != nil {
		return nil, err
	}
	system, err := openLoopbackSystem()
	if err != nil {
		return nil, err
	}
	c := addresses.NewLoopback(addresses.LoopbackConfig{
		Families: o.Families, AwaitEndpoints: o.Hooks.FirstConnection != nil, Listeners: limit / loopbackShare, Inside: system.inside,
	})
	b := &Backend{
		instance: alone{},
		capture:  c, listeners: c, last: system,
		inner: backends.New(c.Render, backends.Target[addresses.Key, addresses.Value](c)),
	}
	var d dialer = c
	if system.dialer != nil {
		d = system.dialer
	}
	config := o.engineConfig(d)
	config.Descriptors = limit / loopbackShare
	if b.engine, err = engine.New(config); err != nil {
		return nil, errors.Join(err, system.Close())
	}
	c.ServeBy(b.engine, &b.wg)
	return b, nil
}

// loopbackShare is the divisor of the limit of file descriptors that gives how many listeners there
// may be, and how many descriptors the engine counts on.
const loopbackShare = 8
