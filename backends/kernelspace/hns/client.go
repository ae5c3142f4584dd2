package hns

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/internal/hcnschema"
)

// Client calls HNS. [Open] makes it. Its methods may be called from any goroutine; HNS gets one call
// at a time.
//
// A method whose context ends returns at once, although HNS cannot be interrupted: a goroutine waits
// for HNS, and so do later calls.
type Client struct {
	library library
	busy    chan struct{} // has an element while HNS has a call
	events  *events
}

func newClient(open func(notify func(code uint32)) (library, error)) (*Client, error) {
	e := newEvents()
	l, err := open(e.notify)
	if err != nil {
		return nil, err
	}
	c := &Client{library: l, busy: make(chan struct{}, 1), events: e}
	// While HNS does not run or hangs, this fails; Wait tries again and says so.
	ctx, cancel := context.WithTimeout(context.Background(), openLimit)
	defer cancel()
	_ = c.write(ctx, func() error { return e.register(l) })
	return c, nil
}

// openLimit is how long the first registration may delay who opens a client.
const openLimit = 5 * time.Second

// Close ends notifications. Other methods must not be called any more, and calls must have ended.
func (c *Client) Close() error { return c.events.unregister(c.library) }

// run calls do while HNS has no other call.
func run[T any](ctx context.Context, c *Client, do func() (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	select {
	case <-ctx.Done():
		return none, ctx.Err()
	case c.busy <- struct{}{}:
	}
	done := make(chan outcome, 1)
	go func() {
		v, err := do()
		<-c.busy
		done <- outcome{v, err}
	}()
	select {
	case <-ctx.Done():
		return none, ctx.Err()
	case o := <-done:
		return o.value, o.err
	}
}

// Version implements [hcn.Host].
func (c *Client) Version(ctx context.Context) (hcn.Version, error) {
	return run(ctx, c, func() (hcn.Version, error) {
		const path = "/globals/version"
		text, err := c.library.get(path)
		if err != nil {
			return hcn.Version{}, err
		}
		v, refusal, err := hcnschema.Version(text)
		if err == nil && refusal != "" {
			err = &hcn.Error{Op: "HNSCall GET " + path, Record: refusal}
		}
		return v, err
	})
}

// Network implements [hcn.Host].
func (c *Client) Network(ctx context.Context, name string) (hcn.Network, error) {
	return run(ctx, c, func() (hcn.Network, error) {
		ids, err := network.list(c.library, hcnschema.Filter{Name: name})
		if err != nil {
			return hcn.Network{}, err
		}
		for _, id := range ids {
			n, err := read(c, network, id, hcnschema.Network)
			switch {
			case errors.Is(err, hcn.ErrNotFound): // it vanished
			case err != nil:
				return hcn.Network{}, err
			case strings.EqualFold(n.Name, name):
				n.ID = id
				return n, nil
			}
		}
		return hcn.Network{}, fmt.Errorf("network %q: %w", name, hcn.ErrNotFound)
	})
}

// Wait implements [hcn.Host]. When HNS ends it forgets who wants notifications. So the next call
// registers again, and then returns [hcn.Disconnected] a second time: something may have changed in
// between.
func (c *Client) Wait(ctx context.Context) (hcn.Event, error) {
	err := c.write(ctx, func() error { return c.events.register(c.library) })
	if err == nil {
		return c.events.wait(ctx)
	}
	if event := c.events.take(); event != 0 && ctx.Err() == nil {
		return event, nil
	}
	return 0, err
}

// EndpointIDs implements [hcn.Reader].
func (c *Client) EndpointIDs(ctx context.Context, networkID string) ([]string, error) {
	return run(ctx, c, func() ([]string, error) { return endpoint.list(c.library, hcnschema.Filter{NetworkID: networkID}) })
}

// Endpoint implements [hcn.Reader].
func (c *Client) Endpoint(ctx context.Context, id string) (hcn.Endpoint, error) {
	return run(ctx, c, func() (hcn.Endpoint, error) {
		e, err := read(c, endpoint, id, hcnschema.Endpoint)
		e.ID = id
		return e, err
	})
}

// LoadBalancerIDs implements [hcn.Reader].
func (c *Client) LoadBalancerIDs(ctx context.Context) ([]string, error) {
	return run(ctx, c, func() ([]string, error) { return loadBalancer.list(c.library, hcnschema.Filter{}) })
}

// LoadBalancer implements [hcn.Reader].
func (c *Client) LoadBalancer(ctx context.Context, id string) (hcn.LoadBalancer, error) {
	return run(ctx, c, func() (hcn.LoadBalancer, error) {
		b, err := read(c, loadBalancer, id, hcnschema.LoadBalancer)
		b.ID = id
		return b, err
	})
}

// read reads an object.
func read[T any](c *Client, k kind, id string, parse func(text string) (T, error)) (object T, err error) {
	text, err := k.read(c.library, id)
	if err != nil {
		return object, err
	}
	return parse(text)
}

// CreateEndpoint implements [hcn.EndpointWriter].
func (c *Client) CreateEndpoint(ctx context.Context, e hcn.Endpoint) (id string, err error) {
	return c.create(ctx, func() (text string, err error) {
		err = network.open(c.library, e.NetworkID, func(in uintptr) error {
			text, err = endpoint.create(c.library, in, hcnschema.EndpointText(e))
			return err
		})
		return text, err
	})
}

// CreateLoadBalancer implements [hcn.LoadBalancerWriter].
func (c *Client) CreateLoadBalancer(ctx context.Context, b hcn.LoadBalancer) (id string, err error) {
	return c.create(ctx, func() (string, error) { return loadBalancer.create(c.library, 0, hcnschema.LoadBalancerText(b)) })
}

// create returns the ID in the document of an object that do makes.
func (c *Client) create(ctx context.Context, do func() (text string, err error)) (id string, err error) {
	return run(ctx, c, func() (string, error) {
		text, err := do()
		if err != nil {
			return "", err
		}
		return hcnschema.IDOf(text)
	})
}

// DeleteEndpoint implements [hcn.EndpointWriter].
func (c *Client) DeleteEndpoint(ctx context.Context, id string) error {
	return c.write(ctx, func() error { return endpoint.delete(c.library, id) })
}

// ModifyLoadBalancer implements [hcn.LoadBalancerWriter].
func (c *Client) ModifyLoadBalancer(ctx context.Context, b hcn.LoadBalancer) error {
	return c.write(ctx, func() error { return loadBalancer.modify(c.library, b.ID, hcnschema.LoadBalancerText(b)) })
}

// DeleteLoadBalancer implements [hcn.LoadBalancerWriter].
func (c *Client) DeleteLoadBalancer(ctx context.Context, id string) error {
	return c.write(ctx, func() error { return loadBalancer.delete(c.library, id) })
}

func (c *Client) write(ctx context.Context, do func() error) error {
	_, err := run(ctx, c, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

var _ hcn.Client = (*Client)(nil)
