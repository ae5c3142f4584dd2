package backends

import (
	"context"
	"fmt"
	"iter"
	"sync"

	"github.com/vipkit/vipkit/proxy"
)

// Key names one kernel object.
type Key interface {
	comparable
	// Rank is the order of creation: an object may refer to objects of lower
	// rank. Removal goes the other way.
	Rank() int
	// Shared says that several service ports, or one several times, may need
	// the object. It then exists as long as anybody does; all give it the same
	// value. An object that is not shared has one owner, who names it once.
	Shared() bool
}

// Object is a kernel object: a name and all that there is to say about it.
type Object[K Key, V comparable] struct {
	Key   K
	Value V
}

// Render appends the objects that a service port needs to a list, and gives the
// longer list. It must be pure: equal arguments give equal objects in equal
// order. A nil port asks for the objects that are there whatever the service
// ports are.
type Render[K Key, V comparable] func(node *proxy.Node, port *proxy.ServicePort, to []Object[K, V]) []Object[K, V]

// Target is the kernel edge: the only part of a backend that does I/O. Calls do
// not overlap.
type Target[K Key, V comparable] interface {
	// List yields the objects of this backend that exist now. An object in a
	// state that no Value describes is yielded with a Value that no Render
	// gives, so that it is replaced.
	List(ctx context.Context) iter.Seq2[Object[K, V], error]
	// Commit carries out ops: all, or none and an error. What is added or
	// replaced comes first, by rank, then what is removed, by falling rank. An
	// error that holds [proxy.ErrDataplaneLost] says that the outcome is not
	// known, or that the objects are not as they were left.
	Commit(ctx context.Context, ops []Op[K, V]) error
}

// Replacer is an optional ability of a [Target].
type Replacer interface {
	// Replace is asked before an Apply from the zero snapshot, with what will
	// be wanted. If it says yes, List is not called: everything is made anew
	// beside what there is, by as many commits as pieces says; zero leaves
	// that to the backend, which makes them of a bounded size. If must is set,
	// List or Commit has said [ErrReplace] in the same Apply, and only a target
	// that holds no objects may say no.
	Replace(ctx context.Context, want proxy.Snapshot, must bool) (yes bool, pieces int)
	// Replaced is called after Replace has said yes and everything that could
	// be made was. What there was before gives way now, and not earlier.
	Replaced(ctx context.Context) error
}

// DiffRenderer is an optional ability of a [Target], for service ports of many
// endpoints: rendering what a change of one makes different, and nothing else.
type DiffRenderer[K Key, V comparable] interface {
	// RenderDiff appends what only the old port needs to removed and what only
	// the new one needs to added, as the full renderings of both would have it,
	// and gives the longer lists. Neither port is nil. If it reports false, as
	// it must where an object gets another value, both are rendered in full.
	RenderDiff(node *proxy.Node, c proxy.Change, removed, added []Object[K, V]) (r, a []Object[K, V], ok bool)
}

// Cleaner is an optional ability of a [Target]: removing everything without
// looking at it first.
type Cleaner interface {
	// Cleanup removes every object of the target's kind, and is done when
	// there is none.
	Cleanup(ctx context.Context) error
}

// NodeChecker is an optional ability of a [Target] and of any [proxy.Backend]. A
// [proxy.Runner] logs what it finds, and package prommetrics counts it.
type NodeChecker interface {
	// CheckNode gives the settings of the node with which connections to Services
	// of s must fail, whatever is programmed: a [proxy.Problem] of kind Node for
	// each, whose Field is the name of the setting and whose error says what it is,
	// what fails because of it, and what to do. It looks at what costs little, in
	// the network namespace of the calling thread, at any time, and may be called
	// from any goroutine.
	CheckNode(s proxy.Snapshot) []*proxy.Problem
}

// Op makes one object be, be different, or not be.
type Op[K Key, V comparable] struct {
	Kind OpKind
	Key  K
	// Value is the value that the object gets; for Remove the one it had.
	Value V
}

// OpKind is what an [Op] does.
type OpKind uint8

// The kinds of operations.
const (
	// Add makes an object that does not exist.
	Add OpKind = iota
	// Replace gives an existing object another value.
	Replace
	// Remove makes an existing object not be.
	Remove
)

// String gives the kind in one word.
func (k OpKind) String() string {
	return [...]string{"add", "replace", "remove", "?"}[k&3]
}

// New gives a backend that keeps target at what render asks for. Service ports that
// no dataplane can hold are never rendered, but reported by name. The backend
// counts its operations ([proxy.OperationCounter]): as target does if it can,
// else by ops committed.
func New[K Key, V comparable](render Render[K, V], target Target[K, V]) proxy.Backend {
	r := &reconciler[K, V]{render: render, target: target}
	r.diff, _ = target.(DiffRenderer[K, V])
	r.checker, _ = target.(Checker)
	return r
}

// reconciler is the generic backend.
type reconciler[K Key, V comparable] struct {
	render Render[K, V]
	target Target[K, V]
	// diff and checker are target's abilities, nil if it has none.
	diff    DiffRenderer[K, V]
	checker Checker

	mu sync.Mutex
	// known says that owners matches what was applied last.
	known  bool
	owners map[K]owned[V]
	// leftovers are objects that were found and that nobody has asked for yet;
	// nil outside of an Apply from the zero snapshot.
	leftovers *leftovers[K, V]
	planner   planner[K, V]
	committed uint64
	// settled counts the plans that were carried out, those without operations too.
	settled uint64
}

// owned is a shared object with the number of its owners.
type owned[V comparable] struct {
	count int
	value V
}

// Operations implements [proxy.OperationCounter].
func (r *reconciler[K, V]) Operations() uint64 {
	if c, ok := r.target.(proxy.OperationCounter); ok {
		return c.Operations()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.committed
}

// Drifted implements [proxy.DriftChecker]: as the target says if it can and all is
// known, and else yes.
func (r *reconciler[K, V]) Drifted(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, can := r.target.(proxy.DriftChecker)
	return !can || !r.known || d.Drifted(ctx)
}

// WaitDrift implements [proxy.DriftChecker], as far as the target does.
func (r *reconciler[K, V]) WaitDrift(ctx context.Context) error {
	if d, can := r.target.(proxy.DriftChecker); can {
		return d.WaitDrift(ctx)
	}
	return fmt.Errorf("%w: waiting for drift", proxy.ErrUnsupported)
}

// CheckNode implements [NodeChecker]: as the target says if it can, and else nothing.
func (r *reconciler[K, V]) CheckNode(s proxy.Snapshot) []*proxy.Problem {
	if c, can := r.target.(NodeChecker); can {
		return c.CheckNode(s)
	}
	return nil
}

// Cleanup implements [proxy.Backend].
func (r *reconciler[K, V]) Cleanup(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = false
	if c, ok := r.target.(Cleaner); ok {
		return c.Cleanup(ctx)
	}
	var ops []Op[K, V]
	for o, err := range r.target.List(ctx) {
		if err != nil {
			return err
		}
		ops = append(ops, Op[K, V]{Kind: Remove, Key: o.Key, Value: o.Value})
	}
	return r.commit(ctx, ops)
}

// commit hands ops to the target in the right order.
func (r *reconciler[K, V]) commit(ctx context.Context, ops []Op[K, V]) error {
	if len(ops) == 0 {
		return nil
	}
	if err := r.target.Commit(ctx, r.planner.inOrder(ops)); err != nil {
		return err
	}
	r.committed += uint64(len(ops))
	return nil
}
