package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
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
// backend has written: after a notification, an error, and [Options.ListInterval].
func New(client hcn.Client, options Options) (proxy.Backend, error) {
	o, err := options.complete()
	if err != nil {
		return nil, err
	}
	t := &target{
		client: client, options: o, prefix: o.Identity.Name + "/", notModified: map[key]bool{}, moves: moves{},
		shared: shared{renderer: &renderer{options: &o}, unfinished: newUnfinished(nil)}, state: state{Set: journal.New(o.StateFile)},
	}
	return backends.New(t.Render, t), nil
}

// target is the [backends.Target]: endpoints and load balancers of HNS, which has no transactions. Removals do
// not fail: what could not be removed is tried again later, since it harms nobody but those who want its address.
//
// Calls of List, Commit and Cleanup do not overlap. Other methods use what is shared alone.
type target struct {
	client  hcn.Client
	options Options
	prefix  string // of the names of endpoints

	shared
	// mirror is nil before the first List.
	mirror *mirror
	// notModified are the load balancers that HNS has refused to modify, or has not modified; the zero
	// key stands for all.
	notModified map[key]bool
	moves       moves
	looked      looked
	// end is when everything must have ended that follows calls which failed because the context had.
	end   time.Time
	state state

	ops atomic.Uint64
}

// shared is what methods need that may be called beside List, Commit and Cleanup. These alone change
// renderer and unfinished, so they read both without the lock.
type shared struct {
	mu         sync.Mutex // not held during calls of HNS
	renderer   *renderer
	unfinished unfinished
	drift      drift
	// modifyFailed is why load balancers are made again instead of modified, waitFailed why no
	// notification comes; nil if neither is so.
	modifyFailed, waitFailed error
}

// leave records that something could not be done.
func (s *shared) leave(k key, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unfinished.add(k, err)
}

// await records that something waits for endpoints.
func (s *shared) await(k key, err error, missing map[netip.Addr]bool) {
	s.leave(k, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.unfinished.awaited, missing)
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
func (t *target) Render(node *proxy.Node, port *proxy.ServicePort, out []object) []object {
	return t.current().render(node, port, out)
}

// Abilities implements [backends.Target].
func (t *target) Abilities() backends.Abilities[key, value] {
	return backends.Abilities[key, value]{
		Abilities: proxy.Abilities{
			Operations: t.ops.Load, Drifted: t.Drifted, WaitDrift: t.WaitDrift, CheckNode: t.CheckNode, CheckLimits: t.CheckLimits,
		},
		Check: t.Check, Cleanup: t.Cleanup,
	}
}

// Check is Check of [backends.Abilities].
func (t *target) Check(node *proxy.Node, port *proxy.ServicePort) error {
	return t.current().check(node, port)
}

// CheckLimits is CheckLimits of [proxy.Abilities].
func (t *target) CheckLimits(node *proxy.Node, port *proxy.ServicePort) []*proxy.Problem {
	return t.current().limits(node, port)
}

func (t *target) current() *renderer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.renderer
}

// Commit implements [backends.Target].
func (t *target) Commit(ctx context.Context, ops []op) backends.Outcome {
	t.looked, t.end = looked{}, time.Time{}
	out := backends.Each(ctx, ops, func(o *op) error {
		err := t.carryOut(ctx, o)
		if err == nil {
			return nil
		}
		t.leave(o.Key, err)
		return fmt.Errorf("%v: %w", o.Key, translate(err))
	})
	t.flush()
	return out
}

// flush writes the state file. An error of that stays for CheckNode: the dataplane is right.
func (t *target) flush() {
	t.state.flush()
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.unfinished.all) > 0 {
		t.drift.wakeUp(t.unfinished.isNew)
		t.unfinished.isNew = false
	}
}

// carryOut carries out an operation.
func (t *target) carryOut(ctx context.Context, o *op) error {
	with, _ := o.Payload.(payload)
	if with.host.IsValid() {
		t.mirror.host = with.host
	}
	switch {
	case o.Kind == backends.Remove && o.Key.kind == kindEndpoint:
		return t.removeEndpoint(ctx, o.Key)
	case o.Kind == backends.Remove:
		return t.removeLoadBalancer(ctx, o.Key)
	case o.Key.kind == kindEndpoint:
		return t.putEndpoint(ctx, o.Key, &o.Value, with)
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
