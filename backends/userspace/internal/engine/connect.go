package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

var (
	errDenied      = errors.New("no route forwards it")
	errNoEndpoint  = errors.New("no endpoint could be reached")
	errNoResources = errors.New("out of resources")
)

// connect gives a connection to an endpoint that may serve a flow. It tries one
// endpoint after the other, those last that failed a short while ago. Who sticks
// to an endpoint leaves it only because of what happened to himself.
func (e *Engine) connect(ctx context.Context, d *decision) (net.Conn, *endpoints.Endpoint, error) {
	table := d.service.table(d.pool)
	c := candidates{engine: e, decision: d, preferred: remembered(table, d)}
	var failures []error
	for try := range e.config.Timeouts.Dial {
		to := c.next()
		if to == nil {
			break
		}
		conn, err := e.dial(ctx, d, to, e.config.Timeouts.Dial[try])
		if err == nil {
			if table != nil && to != c.preferred {
				table.Put(d.flow.Client.Addr(), to.Addr)
			}
			return conn, to, nil
		}
		failures = append(failures, fmt.Errorf("%v: %w", to.Addr, err))
		if ctx.Err() != nil || errors.Is(err, errNoResources) || to == c.preferred && errors.Is(err, ErrNoPort) {
			break
		}
		c.failed(to, err)
	}
	return nil, nil, fmt.Errorf("%w: %w", errNoEndpoint, errors.Join(failures...))
}

// remembered gives the endpoint that a client sticks to; nil if there is none.
func remembered(table *affinity.Table, d *decision) *endpoints.Endpoint {
	if table == nil {
		return nil
	}
	addr, ok := table.Get(d.flow.Client.Addr())
	if !ok {
		return nil
	}
	return find(d.endpoints, addr)
}

func find(pool []*endpoints.Endpoint, addr netip.AddrPort) *endpoints.Endpoint {
	i, ok := slices.BinarySearchFunc(pool, addr, func(e *endpoints.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	if !ok {
		return nil
	}
	return pool[i]
}

// dial makes one try.
func (e *Engine) dial(ctx context.Context, d *decision, to *endpoints.Endpoint, patience time.Duration) (net.Conn, error) {
	sees := d.view(to)
	fromNode := d.fromNode || sees.from.IsValid() && slices.Contains(d.node.Addresses, sees.from)
	conn, err := e.reach(ctx, Dial{Protocol: d.flow.Protocol, From: sees.from, FromNode: fromNode, To: to.Addr}, patience)
	switch {
	case err == nil:
		if d.flow.Protocol != v1.ProtocolUDP { // a socket of UDP proves nothing
			e.suspects.acquit(d.suspect(to))
		}
		return conn, nil
	case errors.Is(err, ErrNoPort):
	case isShortage(err):
		return nil, fmt.Errorf("%w: %w", errNoResources, err)
	case d.flow.Protocol == v1.ProtocolUDP: // nobody has been asked anything
	case ctx.Err() == nil:
		e.suspects.accuse(d.suspect(to))
	}
	return nil, err
}

// reach gives a connection, if there is one in time. For a socket of UDP there is
// nothing to wait for, and so no time after which it comes too late: on a machine
// that is busy enough, that would lose a datagram.
func (e *Engine) reach(ctx context.Context, d Dial, patience time.Duration) (net.Conn, error) {
	if d.Protocol == v1.ProtocolUDP {
		return e.config.Hooks.Dial(ctx, d)
	}
	if begin := e.config.Hooks.Begin; begin != nil {
		fd, err := begin(d)
		if err != nil {
			return nil, err
		}
		return e.await(ctx, fd, d.To, patience)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := e.config.Hooks.Dial(ctx, d)
	if err != nil {
		return nil, err
	}
	return e.own(conn), nil
}

// isShortage reports whether an error is the fault of this side.
func isShortage(err error) bool {
	for _, n := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL, syscall.EPERM, syscall.EACCES} {
		if errors.Is(err, n) {
			return true
		}
	}
	return false
}

// candidates gives the endpoints to try for a flow, in their order.
type candidates struct {
	engine   *Engine
	decision *decision
	// preferred is the one that the client stuck to before; may be nil.
	preferred *endpoints.Endpoint
	tried     []*endpoints.Endpoint
	// slow are those that did not answer in time, which a longer try may reach.
	slow []*endpoints.Endpoint
}

// draws is how often chance may choose an endpoint that should be avoided before
// all of them are looked at.
const draws = 4

// next gives the endpoint to try now; nil if there is none left.
func (c *candidates) next() *endpoints.Endpoint {
	pool := c.decision.endpoints
	if len(c.tried) == 0 && c.preferred != nil && !c.avoids(c.preferred, true) {
		return c.preferred
	}
	for range draws {
		e := pool[c.engine.pick(c.decision.flow, pool)]
		if !slices.Contains(c.tried, e) && !c.avoids(e, false) {
			return e
		}
	}
	var good, bad []*endpoints.Endpoint
	for _, e := range pool {
		switch {
		case slices.Contains(c.tried, e):
		case c.isSuspect(e):
			bad = append(bad, e)
		default:
			good = append(good, e)
		}
	}
	for _, rest := range [][]*endpoints.Endpoint{good, bad, c.slow} {
		if len(rest) > 0 {
			return rest[c.engine.pick(c.decision.flow, rest)]
		}
	}
	return nil
}

// suspect gives what an endpoint would be suspected as, and by whom.
func (d *decision) suspect(e *endpoints.Endpoint) (k suspectKey, by netip.Addr) {
	sees := d.view(e)
	return suspectKey{e.Addr, d.flow.Protocol, sees.link}, sees.source
}

// avoids reports whether an endpoint should not be tried, alone: because of what
// happened to this source.
func (c *candidates) avoids(e *endpoints.Endpoint, alone bool) bool {
	if c.engine.suspects.none() {
		return false // as almost always, and nobody need know what the endpoint sees
	}
	k, by := c.decision.suspect(e)
	return c.engine.suspects.avoid(k, by, alone)
}

func (c *candidates) isSuspect(e *endpoints.Endpoint) bool {
	return c.engine.suspects.is(c.decision.suspect(e))
}

// failed takes note that an endpoint could not be reached.
func (c *candidates) failed(e *endpoints.Endpoint, err error) {
	c.tried = append(c.tried, e)
	c.slow = slices.DeleteFunc(c.slow, func(s *endpoints.Endpoint) bool { return s == e })
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		c.slow = append(c.slow, e)
	}
}

// awaken waits for the first endpoint of a service port that has none.
func (e *Engine) awaken(ctx context.Context, d decision) (decision, error) {
	first := e.config.Hooks.FirstConnection
	if first == nil || d.action != proxy.Reject {
		return d, errDenied
	}
	changed := e.waiting()
	first(d.flow, d.port.Name)
	ctx, cancel := context.WithTimeout(ctx, e.config.Timeouts.Wake)
	defer cancel()
	for {
		if d = e.decide(d.flow); d.action != proxy.Reject {
			break
		}
		select {
		case <-changed:
			changed = e.waiting()
		case <-ctx.Done():
			return d, fmt.Errorf("waiting for the first endpoint: %w", ctx.Err())
		}
	}
	if d.action != proxy.Forward {
		return d, errDenied
	}
	return d, nil
}
