package backends

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/vipkit/vipkit/internal/enum"
	"github.com/vipkit/vipkit/proxy"
)

// Key names one kernel object.
type Key interface {
	comparable
	// Rank is the order of creation: an object may refer to objects of lower
	// rank. Removal goes the other way.
	Rank() int
	// Shared says that several service ports, or one several times, may need
	// the object. It then exists as long as one of them does; all render it with the
	// same value. An object that is not shared has one owner, which renders it once.
	Shared() bool
}

// Object is a kernel object: its key, a value that differs if the content of the object
// differs, and its content.
type Object[K Key, V comparable] struct {
	// Key identifies the object in the dataplane.
	Key K
	// Value is the content; an object with another one is replaced.
	Value V
	// Payload is what a Target needs beside Key and Value to write the object, such
	// as the rules of a chain or a function that makes them. It is not compared:
	// objects with equal Key and Value must have payloads with the same effect. List
	// leaves it nil.
	Payload any
}

// Render appends the objects that a service port needs to a list, and returns the
// longer list. It must be pure: equal arguments return equal objects in equal
// order. A nil port requests the static objects, which exist whatever the service
// ports are.
type Render[K Key, V comparable] func(env Env, port *proxy.ServicePort, to []Object[K, V]) []Object[K, V]

// Target is the kernel edge: the only part of a backend that does I/O. Calls do
// not overlap.
type Target[K Key, V comparable] interface {
	// List yields the objects of this backend that exist now. An object in a
	// state that no Value describes is yielded with a Value that Render never
	// returns, so that it is replaced.
	List(ctx context.Context) iter.Seq2[Object[K, V], error]
	// Commit carries out ops in order, and returns which of them failed. Additions and
	// replacements come first, by rank, then removals, by falling rank. Commit undoes nothing.
	// It does not try an op that needs a failed one, nor a removal after an Add or Replace has
	// failed: such an op fails with the error of the failed op.
	Commit(ctx context.Context, ops []Op[K, V]) Outcome
	// Abilities returns what else the target can do. [New] calls it once.
	Abilities() TargetAbilities[K, V]
}

// TargetAbilities are what a [Target] can do beside List and Commit. A function is nil if the target lacks
// the ability. Calls of these functions and of the target's methods do not overlap, except where
// [proxy.Abilities] say so.
type TargetAbilities[K Key, V comparable] struct {
	// The backend that [New] returns has these Abilities. Without Operations, it counts the ops that
	// were carried out.
	proxy.Abilities
	// Facts returns what the target has found outside of a snapshot, such as features of the kernel, if
	// [Render] needs it to apply the snapshot. If the facts differ, by [reflect.DeepEqual], from the facts
	// of the last Apply, everything is rendered again, as after a change of the node. Nobody changes what
	// was returned. It is called before anything is rendered, after List or Replace if one of them is
	// called. It must cost little.
	Facts func(want proxy.Snapshot) any
	// Check returns why a service port cannot be programmed with this node and these facts; nil if it can. With an error,
	// the port is not rendered, and Apply reports the error by the port's name. It must be pure, as
	// [Render] is. Ports that no dataplane can serve, such as one with an endpoint of the other family,
	// are refused before.
	Check func(env Env, port *proxy.ServicePort) error
	// RenderDiff is for service ports with many endpoints. It appends to removed the objects that only the
	// old port of a change needs, and to added the objects that only the new port needs, and returns both
	// lists. The objects are as [Render] returns them. Neither port is nil. If ok is false, both ports are
	// rendered in full. It must be false if an object keeps its key and gets another value.
	RenderDiff func(env Env, c proxy.Change, removed, added []Object[K, V]) (r, a []Object[K, V], ok bool)
	// Replace is called before an Apply from the zero snapshot, with the snapshot that Apply will
	// achieve. Unless it returns nil, List is not called: the replacement that it returns makes all
	// objects. If must is true, List or Commit has returned [ErrReplace] in the same Apply, and only a
	// target without objects may return nil.
	Replace func(ctx context.Context, want proxy.Snapshot, must bool) Replacement[K, V]
	// Cleanup removes every object of the target without listing them first, and succeeds if there is
	// none.
	Cleanup func(ctx context.Context) error
	// Close releases what the target holds, when the backend is closed.
	Close func() error
}

// Replacement makes all objects again: beside the existing ones, or in a first commit that
// removes these. One that is not finished is dropped; the next Apply removes what it made.
type Replacement[K Key, V comparable] interface {
	// Commit is as in [Target], for the objects of the replacement.
	Commit(ctx context.Context, ops []Op[K, V]) Outcome
	// Pieces returns how many commits to divide all objects into; zero leaves that to the
	// backend, which limits their size.
	Pieces() int
	// Finish is called once, after all commits. It makes the replacement take effect and removes the
	// former objects, unless the first commit has removed them. Nothing takes effect before.
	Finish(ctx context.Context) error
}

// Op adds, replaces or removes one object.
type Op[K Key, V comparable] struct {
	// Kind says what to do.
	Kind OpKind
	// Key is the object.
	Key K
	// Value is the value that the object gets; for Remove the one it had.
	Value V
	// Payload is the payload of the rendered object. For Remove it may be nil.
	Payload any
}

// OpKind is what an [Op] does.
type OpKind uint8

// The kinds of operations.
const (
	// Add adds an object that does not exist.
	Add OpKind = iota
	// Replace gives an existing object another value.
	Replace
	// Remove removes an existing object.
	Remove
)

// String returns the kind in one word.
func (k OpKind) String() string { return enum.Name(k, "add", "replace", "remove") }

// New returns a backend that makes target hold the objects of render. Service ports that
// no dataplane can serve are never rendered, but reported by name.
func New[K Key, V comparable](render Render[K, V], target Target[K, V]) proxy.Backend {
	return &reconciler[K, V]{render: render, target: target, able: target.Abilities()}
}

// reconciler is the generic backend.
type reconciler[K Key, V comparable] struct {
	render Render[K, V]
	target Target[K, V]
	able   TargetAbilities[K, V] // of target

	mu sync.Mutex
	// env is the world for which the applied objects were rendered; nil if owners and pending do not match
	// the kernel.
	env    *Env
	owners map[K]owned[V]
	// pending are the objects for which the kernel and the applied snapshot differ: an object that List
	// yielded and no service port has claimed yet, an object that could not be removed, and an object that
	// the change of a failed port has made or removed. failed are the changes that failed in the last Apply.
	pending map[K]held[V]
	failed  []failure[K]
	// touched says that the present Apply has changed something.
	touched bool
	// replacement, unless it is nil, gets the commits of this Apply.
	replacement Replacement[K, V]
	planner     planner[K, V]
	committed   uint64
}

// owned is a shared object with the number of its owners.
type owned[V comparable] struct {
	count int
	value V
}

// Abilities implements [proxy.Backend].
func (r *reconciler[K, V]) Abilities() proxy.Abilities {
	a := r.able.Abilities
	if a.Operations == nil {
		a.Operations = r.operations
	}
	if a.Drifted != nil {
		a.Drifted = r.drifted
	}
	return a
}

// operations returns the number of ops committed.
func (r *reconciler[K, V]) operations() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.committed
}

// drifted reports whether the state is not known, or the target has drifted. An object that could not
// be removed counts as drift.
func (r *reconciler[K, V]) drifted(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.env == nil || len(r.pending) > 0 && len(r.failed) == 0 || r.able.Drifted(ctx)
}

// Cleanup implements [proxy.Backend].
func (r *reconciler[K, V]) Cleanup(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget()
	if r.able.Cleanup != nil {
		return r.able.Cleanup(ctx)
	}
	if err := r.list(ctx); err != nil {
		return err
	}
	stayed, err := r.sweep(ctx)
	return errors.Join(stayed, err)
}

// Close implements [proxy.Backend].
func (r *reconciler[K, V]) Close() error {
	if r.able.Close == nil {
		return nil
	}
	return r.able.Close()
}

// commit commits ops to the target, or to its replacement, in the right order.
func (r *reconciler[K, V]) commit(ctx context.Context, ops []Op[K, V]) (out Outcome) {
	if len(ops) == 0 {
		return out
	}
	r.planner.inOrder(ops)
	if r.replacement != nil {
		out = r.replacement.Commit(ctx, ops)
	} else {
		out = r.target.Commit(ctx, ops)
	}
	if done := len(ops) - len(out.Failed); out.Lost == nil && done > 0 {
		r.committed += uint64(done)
		r.touched = true
	}
	return out
}
