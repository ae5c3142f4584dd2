package addresses

import (
	"context"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// LoopbackConfig configures a [Loopback].
type LoopbackConfig struct {
	// Families are the IP families to serve.
	Families []v1.IPFamily
	// AwaitEndpoints says that connections to service ports without endpoints are
	// accepted, and wait for an endpoint.
	AwaitEndpoints bool
	// Listeners is the limit of listeners; zero stands for any number.
	Listeners int
	// Namespace is where sockets are made; nil stands for [Anywhere].
	Namespace Namespace
}

// Loopback is a [backends.Target]: sockets that listen at node ports at loopback addresses. They
// get what processes of the node send, and nothing else. Its methods are not called at the same
// time, except Operations and Listening.
type Loopback struct {
	LoopbackConfig
	sockets

	listeners map[Key]*listener
	unneeded  map[Key]bool // those of listeners that Sweep closes
	ops       atomic.Uint64
	// four and six are how many listeners are open, by IP family.
	four, six atomic.Int64
}

var (
	_ backends.Target[Key, Value] = (*Loopback)(nil)
	_ backends.Separator          = (*Loopback)(nil)
	_ backends.Checker            = (*Loopback)(nil)
)

// NewLoopback returns a target without listeners. Its method ServeBy must be called before it is
// used.
func NewLoopback(c LoopbackConfig) *Loopback {
	return &Loopback{
		LoopbackConfig: c, listeners: map[Key]*listener{}, unneeded: map[Key]bool{},
		sockets: sockets{
			Frontends: host.NewFrontends(netip.Addr.IsLoopback),
			config:    net.ListenConfig{Control: host.BindToLoopback},
			namespace: orAnywhere(c.Namespace),
			originOf:  func(Key, netip.Addr) engine.Origin { return engine.Node },
		},
	}
}

// Check implements [backends.Checker].
func (l *Loopback) Check(at *proxy.Node, port *proxy.ServicePort) error {
	if len(l.Render(at, port, nil)) == 0 {
		return nil
	}
	return host.CheckProtocol(port)
}

// Render implements [backends.Render].
func (l *Loopback) Render(at *proxy.Node, port *proxy.ServicePort, out []Object) []Object {
	if port == nil || !slices.Contains(l.Families, port.Name.Family) {
		return out
	}
	for i := range port.Frontends {
		f := &port.Frontends[i]
		pod, node, _ := f.Routes()
		if f.Kind != proxy.NodePort || !listens(l.AwaitEndpoints, pod, node) {
			continue
		}
		for _, a := range at.NodePorts.LoopbackAddresses() {
			if ipaddr.FamilyOf(a) == port.Name.Family {
				out = append(out, Object{Key: Key{a, f.Addr.Port(), port.Name.Protocol}})
			}
		}
	}
	return out
}

// Separate implements [backends.Separator]: a port that another program has must not have the
// listeners of other Services opened again.
func (l *Loopback) Separate() bool { return true }

// List implements [backends.Target]. Sweep closes a listener that nothing needs, so that the list leaves
// it out: if a service port needs it again before, it is opened, which keeps it.
func (l *Loopback) List(context.Context) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		for k := range l.listeners {
			if !l.unneeded[k] && !yield(Object{Key: k}, nil) {
				return
			}
		}
	}
}

// Commit implements [backends.Target]. It closes no listener: [Loopback.Sweep] does, so that one stays
// open whose node port moves to another service port.
func (l *Loopback) Commit(ctx context.Context, ops []op) error {
	for i := range ops {
		if ops[i].Kind != backends.Add {
			continue
		}
		if err := l.open(ctx, ops[i].Key); err != nil {
			for _, done := range ops[:i] {
				if done.Kind == backends.Add {
					l.unneeded[done.Key] = true
				}
			}
			return fmt.Errorf("userspace: %w", err)
		}
	}
	for i := range ops {
		if ops[i].Kind == backends.Remove {
			l.unneeded[ops[i].Key] = true
		}
	}
	return nil
}

// open opens a listener, unless it is open.
func (l *Loopback) open(ctx context.Context, k Key) error {
	if l.unneeded[k] {
		delete(l.unneeded, k)
		return nil
	}
	if l.Listeners > 0 && len(l.listeners)-len(l.unneeded) >= l.Listeners {
		return fmt.Errorf("listening at %v/%s: %w: node ports at loopback addresses have %d sockets, an eighth of RLIMIT_NOFILE: raise it",
			k.at(), k.protocol, backends.ErrExhausted, l.Listeners)
	}
	opened, err := l.listen(ctx, k)
	if err != nil {
		return explain(k, err)
	}
	l.listeners[k] = opened
	l.count(k, 1)
	return nil
}

// Sweep closes the listeners that no service port needs any more.
func (l *Loopback) Sweep(context.Context) error {
	for k := range l.unneeded {
		l.unlisten(k)
	}
	return nil
}

// unlisten closes a listener. Its connections stay open.
func (l *Loopback) unlisten(k Key) {
	if x := l.listeners[k]; x != nil {
		_ = x.Close() // The socket is closed, whatever the error.
		l.count(k, -1)
	}
	delete(l.listeners, k)
	delete(l.unneeded, k)
}

// count counts a listener that was opened (1) or closed (-1).
func (l *Loopback) count(k Key, n int64) {
	l.ops.Add(1)
	if k.addr.Is4() {
		l.four.Add(n)
	} else {
		l.six.Add(n)
	}
}

// Listening returns how many listeners are open in an IP family. It may be called at any time.
func (l *Loopback) Listening(family v1.IPFamily) int {
	if family == v1.IPv4Protocol {
		return int(l.four.Load())
	}
	return int(l.six.Load())
}

// Operations implements [proxy.OperationCounter]. It counts listeners that were opened or closed.
func (l *Loopback) Operations() uint64 { return l.ops.Load() }

// Drifted implements [proxy.DriftChecker]: no other program changes sockets of this process.
func (l *Loopback) Drifted(context.Context) bool { return false }

// WaitDrift implements [proxy.DriftChecker].
func (l *Loopback) WaitDrift(context.Context) error {
	return fmt.Errorf("userspace: %w: sockets do not drift", proxy.ErrUnsupported)
}

// Open does nothing: each frontend has listeners of its own, which Commit opens.
func (l *Loopback) Open(context.Context, bool) error { return nil }

// StopAccepting closes all listeners.
func (l *Loopback) StopAccepting() error { return l.CloseListeners() }

// CloseListeners closes all listeners. Connections stay open.
func (l *Loopback) CloseListeners() error {
	for k := range l.listeners {
		l.unlisten(k)
	}
	return nil
}

// Close closes all listeners.
func (l *Loopback) Close() error { return l.CloseListeners() }
