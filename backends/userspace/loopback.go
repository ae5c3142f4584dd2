package userspace

import (
	"errors"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/addresses"
	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
)

// openLoopback returns a backend with the capture [Loopback]. Half of the descriptors that it may
// use are for listeners, and half for the engine.
func (o *Options) openLoopback() (*Backend, error) {
	limit, err := descriptorLimit()
	if err != nil {
		return nil, err
	}
	namespace, err := openNamespace()
	if err != nil {
		return nil, err
	}
	c := addresses.NewLoopback(addresses.LoopbackConfig{
		Families: o.Families, AwaitEndpoints: o.Hooks.FirstConnection != nil, Listeners: limit / loopbackShare, Namespace: namespace,
	})
	b := &Backend{listeners: c, listening: c.Listening, inner: backends.New(c.Render, backends.Target[addresses.Key, addresses.Value](c))}
	config := o.engineConfig(c)
	config.Descriptors = limit / loopbackShare
	if b.engine, err = engine.New(config); err != nil {
		return nil, errors.Join(err, b.inner.Close())
	}
	c.ServeBy(b.engine, &b.wg)
	return b, nil
}

// loopbackShare is the divisor of the limit of file descriptors that gives how many listeners there
// may be, and how many descriptors the engine counts on.
const loopbackShare = 8
