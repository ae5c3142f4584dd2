package addresses

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net"
	"net/netip"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// Loopback is a [backends.Target]: sockets that listen at node ports at loopback addresses. They
// get what processes of the node send, and nothing else. Its methods are not called at the same
// time, except Listening.
type Loopback struct {
	Serving
	sockets

	limit int
}

// NewLoopback returns a target without listeners, which may have a limited number of them; zero
// stands for any number. Its method ServeBy must be called before it is used.
func NewLoopback(s Serving, limit int) *Loopback {
	return &Loopback{
		Serving: s, limit: limit,
		sockets: sockets{
			isLocal:   netip.Addr.IsLoopback,
			listeners: map[Key]io.Closer{},
			config:    net.ListenConfig{Control: host.BindToLoopback},
			namespace: s.Sockets,
			origin:    engine.Node,
		},
	}
}

// Abilities implements [backends.Target]. No other program changes sockets of this process.
func (l *Loopback) Abilities() backends.TargetAbilities[Key, Value] {
	return backends.TargetAbilities[Key, Value]{
		Abilities: proxy.Abilities{Operations: l.ops.Load, Drifted: func(context.Context) bool { return false }},
		Check:     l.Check, Close: l.namespace.Close,
	}
}

// Check is Check of [backends.TargetAbilities].
func (l *Loopback) Check(env backends.Env, port *proxy.ServicePort) error {
	if len(l.Render(env, port, nil)) == 0 {
		return nil
	}
	return host.CheckProtocol(port)
}

// Render implements [backends.Render].
func (l *Loopback) Render(env backends.Env, port *proxy.ServicePort, out []Object) []Object {
	if port == nil || !l.serves(port.Name.Family) {
		return out
	}
	for i := range port.Frontends {
		f := &port.Frontends[i]
		pod, node, _ := f.Routes()
		if f.Kind != proxy.NodePort || !listens(l.AwaitEndpoints, pod, node) {
			continue
		}
		for _, a := range env.Node.NodePorts.LoopbackAddresses() {
			if ipaddr.FamilyOf(a) == port.Name.Family {
				out = append(out, Object{Key: Key{a, f.Addr.Port(), port.Name.Protocol}})
			}
		}
	}
	return out
}

// List implements [backends.Target].
func (l *Loopback) List(context.Context) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		for k := range l.listeners {
			if !yield(Object{Key: k}, nil) {
				return
			}
		}
	}
}

// Commit implements [backends.Target].
func (l *Loopback) Commit(ctx context.Context, ops []op) backends.Outcome {
	return backends.Each(ctx, ops, func(o *op) error {
		if o.Kind == backends.Remove {
			l.unlisten(o.Key)
			return nil
		}
		if err := l.openOne(ctx, o.Key); err != nil {
			return fmt.Errorf("userspace: %w", err)
		}
		return nil
	})
}

func (l *Loopback) openOne(ctx context.Context, k Key) error {
	if l.limit > 0 && len(l.listeners) >= l.limit {
		return fmt.Errorf("listening at %v/%s: node ports at loopback addresses have %d sockets, an eighth of RLIMIT_NOFILE: raise it",
			k.at(), k.protocol, l.limit)
	}
	if err := l.listen(ctx, k); err != nil {
		return explain(k, err)
	}
	return nil
}
