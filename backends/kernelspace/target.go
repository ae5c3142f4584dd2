package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/internal/journal"
	"github.com/vipkit/vipkit/proxy"
)

// New returns a backend that programs HNS through a client, which it does not close. It makes no call
// before the first Apply.
//
// Operations of [proxy.Abilities] are calls that write. Drifted says when HNS may differ from what the
// backend has written: after a notification, an error, and five minutes.
func New(client hcn.Client, options Options) (proxy.Backend, error) {
	o, err := options.complete()
	if err != nil {
		return nil, err
	}
	t := &target{
		client: client, options: o, prefix: o.Identity.Name + "/",
		shared: shared{pending: newPendingObjects(nil), notModified: map[key]error{}}, state: state{Set: journal.New(o.StateFile)},
	}
	return backends.New(t.Render, t), nil
}

// target is the [backends.Target]: endpoints and load balancers of HNS, which has no transactions. What cannot
// be removed is tried again later.
//
// Calls of List, Commit and Cleanup do not overlap. Other methods use what is shared alone.
type target struct {
	client  hcn.Client
	options Options
	prefix  string // of the names of endpoints

	shared
	// mirror is nil before the first List.
	mirror *mirror
	looked looked
	// end is when everything must have ended that follows calls which failed because the context had.
	end   time.Time
	state state

	ops atomic.Uint64
}

// shared is what methods need that may be called beside List, Commit and Cleanup. These alone change
// facts and pending, so they read both without the lock.
type shared struct {
	mu      sync.Mutex // not held during calls of HNS
	facts   facts
	pending pendingObjects
	drift   drift
	// notModified are the load balancers that HNS has refused to modify, or has not modified, and why; the zero
	// key stands for all.
	notModified map[key]error
	// waitFailed is why no notification comes; nil if it does.
	waitFailed error
}

// looked is what the current Commit has read again.
type looked struct{ endpoints, network bool }

// grace bounds what follows failed calls, so that Apply ends although HNS does not answer.
const grace = 10 * time.Second

// afterwards returns a context for what must follow a failed call, also if the call failed because
// ctx has ended. All that follows in one Commit or List after that has one grace.
func (t *target) afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	end := time.Now().Add(grace)
	if ctx.Err() != nil {
		if t.end.IsZero() {
			t.end = end
		}
		end = t.end
	}
	return context.WithDeadline(context.WithoutCancel(ctx), end)
}

// Render is a [backends.Render].
func (t *target) Render(env backends.Env, port *proxy.ServicePort, out []object) []object {
	return t.options.rendererFor(env).render(env.Node, port, out)
}

// Abilities implements [backends.Target].
func (t *target) Abilities() backends.TargetAbilities[key, value] {
	return backends.TargetAbilities[key, value]{
		Abilities: proxy.Abilities{
			Operations: t.ops.Load, Drifted: t.Drifted, WaitDrift: t.WaitDrift, CheckNode: t.CheckNode, CheckLimits: t.CheckLimits,
		},
		Facts: func(proxy.Snapshot) any { return t.facts }, Check: t.Check, Cleanup: t.Cleanup,
	}
}

// Check is Check of [backends.TargetAbilities].
func (t *target) Check(env backends.Env, port *proxy.ServicePort) error {
	return t.options.rendererFor(env).check(env.Node, port)
}

// CheckLimits is CheckLimits of [proxy.Abilities].
func (t *target) CheckLimits(node *proxy.Node, port *proxy.ServicePort) []*proxy.Problem {
	return t.renderer().limits(node, port)
}

// renderer returns a renderer for what the last list has found.
func (t *target) renderer() *renderer { return &renderer{&t.options, t.facts} }

// Commit implements [backends.Target].
func (t *target) Commit(ctx context.Context, ops []op) backends.Outcome {
	t.looked, t.end = looked{}, time.Time{}
	out := backends.Each(ctx, ops, func(o *op) error {
		t.setPending(o.Key, pendingObject{})
		err := translate(t.carryOut(ctx, o))
		if err == nil {
			t.settle(o.Key)
			return nil
		}
		t.setPending(o.Key, pendingObject{err: err}) // HNS may have done a part of it
		if o.Kind == backends.Remove && !isFatal(ctx, err) {
			// It harms nobody but those who want its address, and it may stay for ever: no Apply fails because of it.
			return nil
		}
		return fmt.Errorf("%v: %w", o.Key, err)
	})
	t.flush()
	return out
}

// flush writes the state file. An error of that stays for CheckNode: the dataplane is right.
func (t *target) flush() {
	t.state.flush()
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.pending.all) > 0 && t.drift.wake != nil {
		t.drift.wake() // it waits for what is to be tried again
	}
}

// carryOut carries out an operation.
func (t *target) carryOut(ctx context.Context, o *op) error {
	with, _ := o.Payload.(payload)
	if o.Kind != backends.Remove && o.Value.host.IsValid() {
		t.mirror.host = o.Value.host
	}
	switch {
	case o.Kind == backends.Remove && o.Key.kind == kindEndpoint:
		return t.removeEndpoint(ctx, o.Key)
	case o.Kind == backends.Remove:
		return t.removeLoadBalancer(ctx, o.Key)
	case o.Key.kind == kindEndpoint:
		return t.putEndpoint(ctx, o.Key, &o.Value)
	case o.Key.kind == kindHealthCheck:
		return t.putHealthCheck(ctx, o.Key, &o.Value, with)
	}
	return t.putLoadBalancer(ctx, o.Key, &o.Value, with)
}

// translate adds what errors of HNS mean to a backend.
func translate(err error) error {
	switch {
	case errors.Is(err, hcn.ErrUnavailable):
		return fmt.Errorf("%w: %w", backends.ErrUnavailable, err)
	case errors.Is(err, hcn.ErrUnsupported):
		return fmt.Errorf("%w: %w", proxy.ErrUnsupported, err)
	}
	return err
}

// isFatal reports whether further calls are useless: HNS does not run, or the context has ended.
func isFatal(ctx context.Context, err error) bool {
	return errors.Is(err, hcn.ErrUnavailable) || ctx.Err() != nil
}

// String names an object in errors.
func (k key) String() string {
	switch {
	case k.kind == kindEndpoint:
		return "endpoint " + k.addr.Addr().String()
	case k.kind == kindUnread:
		return "objects that cannot be read"
	case k.kind == kindHealthCheck:
		return "load balancer of health checks " + k.addr.String()
	case k.addr.Addr().IsUnspecified():
		return fmt.Sprintf("load balancer of node port %d, protocol %d", k.addr.Port(), k.protocol)
	}
	return fmt.Sprintf("load balancer %v, protocol %d", k.addr, k.protocol)
}
