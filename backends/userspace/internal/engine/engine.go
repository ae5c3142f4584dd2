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
	"github.com/vipkit/vipkit/proxy"
)

// Engine carries the traffic of Services. Its methods may be called from several
// goroutines at once.
type Engine struct {
	learned

	config  Config
	start   time.Time
	counts  counts
	buffers lenders

	mu        sync.RWMutex
	applied   proxy.Snapshot
	services  map[proxy.ServicePortName]*service
	frontends map[frontendKey]binding
	changed   chan struct{} // closed when there is another snapshot

	sessions sessions
	tasks    tasks
}

// learned is what the engine has seen, and may forget.
type learned struct {
	suspects *suspects
	affinity *affinity.Budget
}

// counts are the numbers behind [Stats].
type counts struct {
	connections, sessions             atomic.Int64
	accepted, failed, denied, crowded atomic.Uint64
	faults                            atomic.Uint64
	fault                             atomic.Pointer[error] // the last of them
}

// tasks are the goroutines of an engine, and what must be closed for them to end.
type tasks struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	poller poller
	slots  chan struct{} // one for each connection
	quota  *quota        // of those, and of one for each door
	pipes  bound

	mu      sync.Mutex
	closed  bool
	closers map[io.Closer]struct{}
	carried int           // connections that were admitted
	idle    chan struct{} // closed when the last of them ends; nil while nobody waits
}

// Stats are numbers of an engine.
type Stats struct {
	// Connections and Sessions are how many there are now.
	Connections, Sessions int
	// Accepted is how many connections there have been.
	Accepted uint64
	// Failed counts connections and sessions for which no endpoint could be
	// reached, Denied those that no route forwards.
	Failed, Denied uint64
	// Crowded counts connections and datagrams that were too many: of one
	// client, of one service port, of all, or for the ports and descriptors that
	// there are. It also counts sessions that gave way to newer ones.
	Crowded uint64
	// Faults counts errors of the sockets where clients come in, and Fault is
	// the last of them.
	Faults uint64
	Fault  error
}

// New gives an engine that knows no Services yet. It must be closed. The error
// names what is wrong with the configuration.
func New(c Config) (*Engine, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	e := &Engine{
		config:    c,
		start:     time.Now(),
		buffers:   lenders{small: newBuffers(16 << 10), large: newBuffers(maxDatagram)},
		services:  map[proxy.ServicePortName]*service{},
		frontends: map[frontendKey]binding{},
		changed:   make(chan struct{}),
	}
	e.learned = learned{newSuspects(e.config.Timeouts.Suspect), affinity.NewBudget(e.config.AffinityTotal)}
	e.sessions.begin(c.Sessions)
	e.tasks.closers = map[io.Closer]struct{}{}
	e.tasks.slots = make(chan struct{}, e.config.Connections)
	e.tasks.quota = newQuota(e.config.Connections)
	e.tasks.pipes.limit = int64(e.config.pipes())
	e.tasks.ctx, e.tasks.cancel = context.WithCancel(context.Background())
	e.tasks.wg.Go(e.keepHouse)
	return e, nil
}

// Close ends all connections and sessions and waits for its goroutines. Clients
// and endpoints are told, by a reset. The engine cannot be used any more.
func (e *Engine) Close() {
	t := &e.tasks
	t.cancel()
	t.mu.Lock()
	t.closed = true
	for c := range t.closers {
		if _, is := c.(*link); !is {
			_ = c.Close() // There is nobody to tell.
		}
	}
	t.mu.Unlock()
	e.EndAll()
	t.wg.Wait()
	_ = t.poller.Close() // Nobody waits any more.
}

// EndAll ends all connections and sessions that there are, whatever becomes of
// new ones. Clients and endpoints are told, by a reset.
func (e *Engine) EndAll() {
	for _, l := range e.links() {
		l.abort()
	}
	e.sessions.endAll()
}

// adopt has c closed with the engine; it reports false, and closes c, if that
// has happened.
func (t *tasks) adopt(c io.Closer) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		if l, is := c.(*link); is {
			l.abort()
		} else {
			_ = c.Close() // There is nobody to tell.
		}
		return false
	}
	t.closers[c] = struct{}{}
	return true
}

// run starts a goroutine that Close waits for; it reports false if that is past.
func (t *tasks) run(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.wg.Go(f)
	return true
}

func (t *tasks) release(c io.Closer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.closers, c)
}

// enter counts a connection that is admitted.
func (t *tasks) enter() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.carried++
}

// leave takes back one that was counted.
func (t *tasks) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.carried--; t.carried == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// becomesIdle gives a channel that is closed when there is no connection any more; nil if
// there is none now.
func (t *tasks) becomesIdle() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.carried == 0 {
		return nil
	}
	if t.idle == nil {
		t.idle = make(chan struct{})
	}
	return t.idle
}

// AwaitIdle waits until no connection is left of those that [Engine.Serve] has
// accepted, or until ctx ends, which is an error.
func (e *Engine) AwaitIdle(ctx context.Context) error {
	idle := e.tasks.becomesIdle()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stats gives the numbers of the engine.
func (e *Engine) Stats() Stats {
	s := Stats{
		Connections: int(e.counts.connections.Load()),
		Sessions:    int(e.counts.sessions.Load()),
		Accepted:    e.counts.accepted.Load(),
		Failed:      e.counts.failed.Load(),
		Denied:      e.counts.denied.Load(),
		Crowded:     e.counts.crowded.Load(),
		Faults:      e.counts.faults.Load(),
	}
	if fault := e.counts.fault.Load(); fault != nil {
		s.Fault = *fault
	}
	return s
}

// report takes note of an error of a socket where clients come in.
func (e *Engine) report(err error) {
	e.counts.faults.Add(1)
	e.counts.fault.Store(&err)
}

// now is the time on the clock by which the engine measures silence.
func (e *Engine) now() time.Duration { return time.Since(e.start) }

// Apply makes next the Services that the engine serves. New flows go by it at
// once. Connections live on while their endpoint is one of their service port,
// and for the grace period after that; sessions end with their endpoint, and when
// their frontend becomes another Service's or closes to them.
func (e *Engine) Apply(next proxy.Snapshot) {
	// Whether one is astray is asked when the sessions are not locked any more: the
	// answer waits for another Apply, and that for the sessions.
	for service := range e.take(next) {
		for _, s := range e.sessions.of(service) {
			if e.isAstray(s) {
				e.sessions.end(s)
			}
		}
	}
}

// take makes next what new flows go by. It gives the services whose frontends may no
// longer lead there.
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
			e.remove(c.Old)
		case c.Old == nil:
			e.add(c.New)
		default:
			if !slices.EqualFunc(c.Old.Frontends, c.New.Frontends, proxy.Frontend.Equal) {
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
		s = &service{engine: e, links: map[*link]struct{}{}}
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

// unbind takes the frontends of a port away that are still its own.
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
	s.lose(addresses(p), nil)
	s.configure(nil)
	delete(e.services, p.Name)
}

func (e *Engine) change(from, to *proxy.ServicePort) {
	s := e.services[to.Name]
	s.configure(to)
	e.bind(s, to)
	e.unbind(from)
	s.lose(addresses(from), addresses(to))
}

// waiting gives a channel that is closed when there is another snapshot.
func (e *Engine) waiting() <-chan struct{} {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.changed
}

// addresses gives the endpoints that a port has, with those that only keep what
// they have.
func addresses(p *proxy.ServicePort) map[netip.AddrPort]struct{} {
	all := make(map[netip.AddrPort]struct{}, len(p.Cluster))
	for _, pool := range [][]*endpoints.Endpoint{p.Cluster, p.Local, p.Draining} {
		for _, x := range pool {
			all[x.Addr] = struct{}{}
		}
	}
	return all
}
