package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
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
// The backend counts calls that write ([proxy.OperationCounter]), and says when HNS may differ from
// what it has written ([proxy.DriftChecker]): after a notification, an error, and
// [Options.ListInterval].
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

// target is the [backends.Target]: endpoints and load balancers of HNS. HNS has no transactions: a
// Commit that fails reverts what it has added and changed. Removals do not fail: what could not be
// removed is tried again later, since it harms nobody but those who want its address.
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
	state       state

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

// Render is a [backends.Render].
func (t *target) Render(node *proxy.Node, port *proxy.ServicePort, out []object) []object {
	return t.current().render(node, port, out)
}

// Check implements [backends.Checker].
func (t *target) Check(node *proxy.Node, port *proxy.ServicePort) error {
	return t.current().check(node, port)
}

// CheckLimits implements [backends.LimitChecker].
func (t *target) CheckLimits(node *proxy.Node, port *proxy.ServicePort) []*proxy.Problem {
	return t.current().limits(node, port)
}

func (t *target) current() *renderer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.renderer
}

// Separate implements [backends.Separator].
func (*target) Separate() bool { return true }

// Operations implements [proxy.OperationCounter].
func (t *target) Operations() uint64 { return t.ops.Load() }

// Commit implements [backends.Target].
func (t *target) Commit(ctx context.Context, ops []op) error {
	t.looked = looked{}
	ctx = context.WithValue(ctx, endKey{}, new(time.Time))
	var done []func(context.Context) error // reverts
	for i := range ops {
		revert, err := t.carryOut(ctx, &ops[i])
		if err != nil {
			t.fail(&ops[i], err)
			err = fmt.Errorf("%v: %w", ops[i].Key, translate(err))
			return t.flush(t.revert(ctx, done, err))
		}
		if revert != nil {
			done = append(done, revert)
		}
	}
	return t.flush(nil)
}

// fail records an operation that failed. A load balancer that could not be changed stays as it was
// until everything is listed, also if no port has it any more because its port failed.
func (t *target) fail(o *op, err error) {
	if o.Kind == backends.Replace {
		err = fmt.Errorf("%w: %w", errKept, err)
	}
	t.leave(o.Key, err)
}

// flush writes the state file. An error of that stays for CheckNode: the dataplane is right.
func (t *target) flush(err error) error {
	t.state.flush()
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.unfinished.all) > 0 {
		t.drift.wakeUp(t.unfinished.isNew)
		t.unfinished.isNew = false
	}
	return err
}

// revert reverts what was done, in reverse, even if ctx has ended.
func (t *target) revert(ctx context.Context, done []func(context.Context) error, cause error) error {
	if len(done) == 0 {
		return cause
	}
	ctx, cancel := afterwards(ctx)
	defer cancel()
	for _, step := range slices.Backward(done) {
		if err := step(ctx); err != nil {
			return fmt.Errorf("%w: %w; reverting: %w", proxy.ErrDataplaneLost, cause, err)
		}
	}
	return cause
}

// afterwardsLimit bounds what follows a failed call, so that Apply ends although HNS does not answer.
const afterwardsLimit = 10 * time.Second

// endKey is the key of the value of a context that has when everything must have ended that follows
// failed calls. It counts from when the first one of them failed because the context had ended.
type endKey struct{}

// afterwards returns a context for what must follow a failed call, also if the call failed because
// ctx has ended.
func afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	end := time.Now().Add(afterwardsLimit)
	if first, _ := ctx.Value(endKey{}).(*time.Time); first != nil && ctx.Err() != nil {
		if first.IsZero() {
			*first = end
		}
		end = *first
	}
	return context.WithDeadline(context.WithoutCancel(ctx), end)
}

// carryOut carries out an operation, and returns how to revert it; nil if there is nothing to
// revert.
func (t *target) carryOut(ctx context.Context, o *op) (revert func(context.Context) error, err error) {
	with, _ := o.Payload.(payload)
	if with.host.IsValid() {
		t.mirror.host = with.host
	}
	switch {
	case o.Kind == backends.Remove && o.Key.kind == kindEndpoint:
		return lost, t.removeEndpoint(ctx, o.Key)
	case o.Kind == backends.Remove:
		return lost, t.removeLoadBalancer(ctx, o.Key, o.Payload == nil)
	case o.Key.kind == kindEndpoint:
		return t.putEndpoint(ctx, o.Key, &o.Value, with)
	case o.Key.kind == kindHealthCheck:
		return t.putHealthCheck(ctx, o.Key, &o.Value, with)
	}
	return t.putLoadBalancer(ctx, o.Key, &o.Value, with)
}

// lost is the revert of a removal.
func lost(context.Context) error { return errors.New("removed objects are not made again") }

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
