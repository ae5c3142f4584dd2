package engine

import (
	"context"
	"io"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/pause"
	"github.com/vipkit/vipkit/proxy"
)

// Engine carries the traffic of Services. Its methods may be called from several
// goroutines at once.
type Engine struct {
	served

	config   Config
	start    time.Time
	counts   counts
	buffers  buffers
	failures *failures
	affinity *affinity.Budget
	sessions sessions
	tasks    tasks
}

// served is the state that the engine derives from the last snapshot. Its fields require mu.
type served struct {
	mu        sync.RWMutex
	applied   proxy.Snapshot
	services  map[proxy.ServicePortName]*service
	frontends map[frontendKey]binding
	changed   chan struct{} // closed by the next Apply
}

// counts are the counters that [Engine.CountConnections] reads.
type counts struct {
	connections, sessions             atomic.Int64
	accepted, failed, denied, crowded atomic.Uint64
	faults                            atomic.Uint64
	bytes                             [ways]atomic.Uint64
	fault                             atomic.Pointer[error] // the last of them
}

// The ways of data.
const (
	toEndpoint = iota
	toClient
	ways
)

// tasks are the goroutines of an engine, and what must be closed to end them.
type tasks struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	slots  chan struct{} // one for each admitted connection
	quota  *quota        // of the connections, with one more for each listener
	pipes  bound

	mu      sync.Mutex
	closed  bool
	closers map[io.Closer]struct{}
}

// New returns an engine without Services. The caller must close it. The error names the
// invalid fields of the configuration.
func New(c Config) (*Engine, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	e := &Engine{
		served: served{
			services:  map[proxy.ServicePortName]*service{},
			frontends: map[frontendKey]binding{},
			changed:   make(chan struct{}),
		},
		config:   c,
		start:    time.Now(),
		buffers:  buffers{small: newPool(16 << 10), large: newPool(maxDatagram)},
		failures: newFailures(c.Timeouts.Suspect),
		affinity: affinity.NewBudget(affinityLimit),
	}
	e.sessions.begin(c.Sessions)
	e.tasks.closers = map[io.Closer]struct{}{}
	e.tasks.slots = make(chan struct{}, e.config.Connections)
	e.tasks.quota = newQuota(e.config.Connections)
	e.tasks.pipes.limit = int64(e.config.pipes())
	e.tasks.ctx, e.tasks.cancel = context.WithCancel(context.Background())
	e.tasks.wg.Go(e.enforceTimeouts)
	return e, nil
}

// Close ends all connections, with resets to clients and endpoints, and all sessions, and
// waits for the engine's goroutines. The engine cannot be used after that.
func (e *Engine) Close() {
	t := &e.tasks
	t.cancel()
	t.mu.Lock()
	t.closed = true
	for c := range t.closers {
		_ = c.Close() // An error would change nothing.
	}
	t.mu.Unlock()
	e.sessions.endAll()
	t.wg.Wait()
}

// EndAll ends all current connections, with resets to clients and endpoints, and all current
// sessions. New ones are served as before.
func (e *Engine) EndAll() {
	for _, c := range e.connections() {
		_ = c.Close()
	}
	e.sessions.endAll()
}

// track has c closed with the engine. If the engine is closed already, track closes c and
// reports false.
func (t *tasks) track(c io.Closer) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		_ = c.Close() // An error would change nothing.
		return false
	}
	t.closers[c] = struct{}{}
	return true
}

// run starts a goroutine that Close waits for; it reports false if the engine is closed.
func (t *tasks) run(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.wg.Go(f)
	return true
}

// untrack removes what track has added. The caller has closed it.
func (t *tasks) untrack(c io.Closer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.closers, c)
}

// AwaitIdle waits until there is no connection that [Engine.Serve] has accepted. If ctx ends first, it
// returns the error of ctx.
func (e *Engine) AwaitIdle(ctx context.Context) error {
	for len(e.tasks.slots) > 0 {
		if err := pause.For(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// CountConnections returns the counters of the engine.
func (e *Engine) CountConnections() proxy.ConnectionCounts {
	s := proxy.ConnectionCounts{
		Connections: int(e.counts.connections.Load()),
		Sessions:    int(e.counts.sessions.Load()),
		Accepted:    e.counts.accepted.Load(),
		Failed:      e.counts.failed.Load(),
		Denied:      e.counts.denied.Load(),
		Crowded:     e.counts.crowded.Load(),
		Faults:      e.counts.faults.Load(),
		BytesIn:     e.counts.bytes[toEndpoint].Load(),
		BytesOut:    e.counts.bytes[toClient].Load(),
	}
	if fault := e.counts.fault.Load(); fault != nil {
		s.Fault = *fault
	}
	return s
}

// report records an error of a listener.
func (e *Engine) report(err error) {
	e.counts.faults.Add(1)
	e.counts.fault.Store(&err)
}

// now returns the time on the engine's clock, by which it measures silence.
func (e *Engine) now() time.Duration { return time.Since(e.start) }

// Apply makes the engine serve the Services of next. New flows follow it at once. Connections
// are kept while their service port has their endpoint, and for the grace period after that.
// Sessions end when their endpoint is removed, and when their frontend is of another Service,
// no longer forwards them, or excludes their endpoint by a policy.
func (e *Engine) Apply(next proxy.Snapshot) {
	// isMisrouted must be called without the lock of the sessions: it waits for a concurrent
	// Apply, which waits for that lock.
	for service := range e.take(next) {
		for _, s := range e.sessions.of(service) {
			if e.isMisrouted(s) {
				e.sessions.end(s)
			}
		}
	}
}

// take makes next the snapshot for new flows. It returns the services that have sessions
// which may be misrouted now: services that were removed, that have a changed frontend or a smaller
// pool, or all when the node has changed.
func (e *Engine) take(next proxy.Snapshot) map[*service]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	moved := map[*service]bool{}
	if before := e.applied.Node(); before != nil && !before.Equal(next.Node()) {
		for _, s := range e.services {
			moved[s] = true
		}
	}
	for c := range next.Changes(e.applied) {
		switch {
		case c.New == nil:
			moved[e.services[c.Old.Name]] = true
			e.remove(c.Old)
		case c.Old == nil:
			e.add(c.New)
		default:
			if !slices.EqualFunc(c.Old.Frontends, c.New.Frontends, proxy.Frontend.Equal) ||
				lacks(c.New.Cluster, c.Old.Cluster) || lacks(c.New.Local, c.Old.Local) || lacks(c.New.Draining, c.Old.Draining) {
				moved[e.services[c.New.Name]] = true
			}
			e.change(c.Old, c.New)
		}
	}
	e.applied = next
	close(e.changed)
	e.changed = make(chan struct{})
	return moved
}

func (e *Engine) add(p *proxy.ServicePort) {
	s := e.services[p.Name]
	if s == nil {
		s = &service{engine: e, connections: map[*connection]struct{}{}}
		e.services[p.Name] = s
	}
	s.configure(p)
	e.bind(s, p)
}

func (e *Engine) bind(s *service, p *proxy.ServicePort) {
	for i := range p.Frontends {
		e.frontends[frontendKey{p.Frontends[i].Addr, p.Name.Protocol}] = binding{s, p, &p.Frontends[i]}
	}
}

// unbind removes the frontends of a port, except those that another port has taken over.
func (e *Engine) unbind(p *proxy.ServicePort) {
	for i := range p.Frontends {
		k := frontendKey{p.Frontends[i].Addr, p.Name.Protocol}
		if e.frontends[k].port == p {
			delete(e.frontends, k)
		}
	}
}

func (e *Engine) remove(p *proxy.ServicePort) {
	s := e.services[p.Name]
	e.unbind(p)
	s.removeEndpoints(addresses(p), nil)
	s.configure(nil)
	delete(e.services, p.Name)
}

func (e *Engine) change(from, to *proxy.ServicePort) {
	s := e.services[to.Name]
	s.configure(to)
	e.bind(s, to)
	e.unbind(from)
	s.removeEndpoints(addresses(from), addresses(to))
}

// lacks reports whether a pool lacks an endpoint that it had. Pools are sorted.
func lacks(pool, had []*endpoints.Endpoint) bool {
	for _, e := range had {
		for len(pool) > 0 && pool[0].Addr.Compare(e.Addr) < 0 {
			pool = pool[1:]
		}
		if len(pool) == 0 || pool[0].Addr != e.Addr {
			return true
		}
	}
	return false
}

// waiting returns a channel that the next Apply closes.
func (e *Engine) waiting() <-chan struct{} {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.changed
}

// addresses returns the addresses of all endpoints of a port, including draining endpoints.
func addresses(p *proxy.ServicePort) map[netip.AddrPort]struct{} {
	all := make(map[netip.AddrPort]struct{}, len(p.Cluster))
	for _, pool := range [][]*endpoints.Endpoint{p.Cluster, p.Local, p.Draining} {
		for _, x := range pool {
			all[x.Addr] = struct{}{}
		}
	}
	return all
}
