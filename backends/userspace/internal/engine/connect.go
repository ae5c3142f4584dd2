package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends/userspace/internal/neterr"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

var (
	errDenied      = errors.New("no route forwards the flow")
	errNoEndpoint  = errors.New("no endpoint could be reached")
	errNoResources = errors.New("out of resources")
	errClosed      = errors.New("the connection was closed while its endpoint was dialed")
	errFrontend    = errors.New("the endpoint is itself an address of a Service: the connection would loop")
	// ErrNoPort is for [Hooks].Dial. It says that all source ports for an endpoint are in use. Another
	// endpoint may have a free one.
	ErrNoPort = errors.New("no source port is left for this endpoint")
)

// connect returns a connection to an endpoint of the flow's pool. It tries one endpoint
// after the other, those that failed recently last. A client with session affinity changes
// its endpoint only because of its own failures.
func (e *Engine) connect(ctx context.Context, d *decision) (net.Conn, *endpoints.Endpoint, error) {
	table := d.service.table(d.route.Pool)
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

// remembered returns the endpoint of a client by session affinity; nil if there is none.
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

// dial makes one attempt.
func (e *Engine) dial(ctx context.Context, d *decision, to *endpoints.Endpoint, timeout time.Duration) (net.Conn, error) {
	sees := d.view(to)
	fromNode := d.fromNode || sees.from.IsValid() && slices.Contains(d.node.Addresses, sees.from)
	as := Dial{Protocol: d.flow.Protocol, From: sees.from, FromNode: fromNode, To: to.Addr}
	conn, err := e.reach(ctx, as, timeout)
	switch {
	case err == nil:
		if d.flow.Protocol != v1.ProtocolUDP { // opening a UDP socket sends nothing
			e.failures.recordSuccess(d.failureKey(to))
		}
		return conn, nil
	case errors.Is(err, ErrNoPort):
	case isShortage(err):
		return nil, fmt.Errorf("%w: %w", errNoResources, err)
	case d.flow.Protocol == v1.ProtocolUDP: // nothing was sent: not a failure of the endpoint
	case ctx.Err() == nil:
		e.failures.recordFailure(d.failureKey(to))
	}
	return nil, err
}

// reach returns a connection, or an error after the timeout. A UDP socket has no timeout,
// since there is nothing to wait for: on a busy machine a timeout would lose a datagram.
func (e *Engine) reach(ctx context.Context, d Dial, timeout time.Duration) (net.Conn, error) {
	if e.config.Captured && e.IsFrontend(d.Protocol, d.To) {
		return nil, errFrontend
	}
	if d.Protocol == v1.ProtocolUDP {
		return e.config.Hooks.Dial(ctx, d)
	}
	ctx, end := withTimeout(ctx, timeout)
	defer end()
	conn, err := e.config.Hooks.Dial(ctx, d)
	if err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return conn, err
}

const (
	// late is how late a timer must be to show that the process could not run.
	late = 20 * time.Millisecond
	// resumption is for how long such a process looks for answers that have arrived meanwhile, and resumptions how
	// often it does, since it may not run then either.
	resumption  = 100 * time.Millisecond
	resumptions = 5
)

// withTimeout returns a context that ends after the timeout, with that as its cause. A busy node may run this
// process after the timeout only, when the endpoint has answered in time: Go looks at timers before it looks
// at sockets, so the context ends a little later then.
func withTimeout(ctx context.Context, timeout time.Duration) (in context.Context, end func()) {
	in, cancel := context.WithCancelCause(ctx)
	timer := expire(timeout, resumptions, func() { cancel(context.DeadlineExceeded) })
	return in, func() {
		timer.Stop()
		cancel(nil)
	}
}

// expire calls a function after a time, or later if the process runs late.
func expire(after time.Duration, resumptions int, then func()) *time.Timer {
	due := time.Now().Add(after)
	return time.AfterFunc(after, func() {
		if resumptions > 0 && time.Since(due) >= late {
			expire(resumption, resumptions-1, then)
			return
		}
		then()
	})
}

// isShortage reports whether this node, and not the endpoint, is the cause of an error.
func isShortage(err error) bool {
	switch neterr.Of(err) {
	case neterr.Shortage, neterr.NotLocal, neterr.InUse:
		return true
	default:
		return false
	}
}

// candidates yields the endpoints to try for a flow, in their order.
type candidates struct {
	engine   *Engine
	decision *decision
	// preferred is the endpoint of the client's session affinity; may be nil.
	preferred *endpoints.Endpoint
	tried     []*endpoints.Endpoint
	// slow are those that did not answer in time; a longer attempt may reach them.
	slow []*endpoints.Endpoint
}

// draws is how many choices are made before all endpoints are checked. A choice fails
// if its endpoint should be avoided.
const draws = 4

// next returns the endpoint to try now; nil if there is none left.
func (c *candidates) next() *endpoints.Endpoint {
	pool := c.decision.endpoints
	if len(c.tried) == 0 && c.preferred != nil && !c.avoids(c.preferred, true) {
		return c.preferred
	}
	for range draws {
		e := pool[c.choose(pool)]
		if !slices.Contains(c.tried, e) && !c.avoids(e, false) {
			return e
		}
	}
	var good, bad []*endpoints.Endpoint
	for _, e := range pool {
		switch {
		case slices.Contains(c.tried, e):
		case c.engine.failures.has(c.decision.failureKey(e)):
			bad = append(bad, e)
		default:
			good = append(good, e)
		}
	}
	for _, rest := range [][]*endpoints.Endpoint{good, bad, c.slow} {
		if len(rest) > 0 {
			return rest[c.choose(rest)]
		}
	}
	return nil
}

// failureKey returns the key and the source under which a failure of an endpoint is recorded.
func (d *decision) failureKey(e *endpoints.Endpoint) (k failureKey, from netip.Addr) {
	sees := d.view(e)
	return failureKey{e.Addr, d.flow.Protocol, sees.link}, sees.source
}

// avoids reports whether an endpoint should not be tried now. If alone is set, only failures
// of this source count.
func (c *candidates) avoids(e *endpoints.Endpoint, alone bool) bool {
	if c.engine.failures.none() {
		return false // the usual case; it saves computing what the endpoint sees
	}
	k, from := c.decision.failureKey(e)
	return c.engine.failures.avoid(k, from, alone)
}

// failed records that an endpoint could not be reached.
func (c *candidates) failed(e *endpoints.Endpoint, err error) {
	c.tried = append(c.tried, e)
	c.slow = slices.DeleteFunc(c.slow, func(s *endpoints.Endpoint) bool { return s == e })
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		c.slow = append(c.slow, e)
	}
}

// awaitEndpoint waits for the first endpoint of a service port that has none.
func (e *Engine) awaitEndpoint(ctx context.Context, d decision) (decision, error) {
	first := e.config.Hooks.FirstConnection
	if first == nil || d.route.Action != proxy.Reject {
		return d, errDenied
	}
	changed := e.waiting()
	first(d.flow, d.port.Name)
	ctx, cancel := context.WithTimeout(ctx, e.config.Timeouts.Wake)
	defer cancel()
	for {
		if d = e.decide(d.flow); d.route.Action != proxy.Reject {
			break
		}
		select {
		case <-changed:
			changed = e.waiting()
		case <-ctx.Done():
			return d, fmt.Errorf("waiting for the first endpoint: %w", ctx.Err())
		}
	}
	if d.route.Action != proxy.Forward {
		return d, errDenied
	}
	return d, nil
}
