package engine

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vipkit/vipkit/affinity"
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
	applies   atomic.Uint64 // counts calls of Apply; can be read without mu
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
	// listeners is how many goroutines serve listeners.
	listeners atomic.Int64
	quota     *quota // of the connections, with one more for each listener
	pipes     bound

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
	e.tasks.pipes = make(bound, e.config.pipes())
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

// AwaitIdle waits until no listener is open, and there is no connection that one has accepted. If ctx ends first, it
// returns the error of ctx.
func (e *Engine) AwaitIdle(ctx context.Context) error {
	for e.tasks.listeners.Load() > 0 || len(e.tasks.slots) > 0 {
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

// Apply makes the engine serve the Services of next. New flows follow it at once. A session follows it with its
// next datagram, in either direction. It ends when its endpoint is removed, and when its frontend is of another
// Service, no longer forwards it, or excludes its endpoint by a policy. A connection is kept while its service port
// has its endpoint, and for the grace period after that. Sessions and connections that are silent follow at the next
// of the intervals of [Engine.enforceTimeouts].
func (e *Engine) Apply(next proxy.Snapshot) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range next.Changes(e.applied) {
		if c.New != nil {
			e.put(c.Old, c.New)
		} else {
			e.remove(c.Old)
		}
	}
	e.applied = next
	e.applies.Add(1)
	close(e.changed)
	e.changed = make(chan struct{})
}

// put adds a port, or replaces the one that has its name.
func (e *Engine) put(from, to *proxy.ServicePort) {
	s := e.services[to.Name]
	if s == nil {
		s = &service{engine: e}
		e.services[to.Name] = s
	}
	s.configure(from, to)
	for i := range to.Frontends {
		e.frontends[frontendKey{to.Frontends[i].Addr, to.Name.Protocol}] = binding{s, to, &to.Frontends[i]}
	}
	e.unbind(from)
}

// unbind removes the frontends of a port, except those that another port has taken over.
func (e *Engine) unbind(p *proxy.ServicePort) {
	if p == nil {
		return
	}
	for i := range p.Frontends {
		k := frontendKey{p.Frontends[i].Addr, p.Name.Protocol}
		if e.frontends[k].port == p {
			delete(e.frontends, k)
		}
	}
}

func (e *Engine) remove(p *proxy.ServicePort) {
	e.services[p.Name].configure(p, nil)
	e.unbind(p)
	delete(e.services, p.Name)
}

// waiting returns a channel that the next Apply closes.
func (e *Engine) waiting() <-chan struct{} {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.changed
}

// snapshot returns the last snapshot that was applied.
func (e *Engine) snapshot() proxy.Snapshot {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.applied
}
