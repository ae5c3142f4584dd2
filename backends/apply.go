package backends

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"

	"github.com/vipkit/vipkit/proxy"
)

// chunk is about how many objects of a first load go into one commit; a large load is
// divided into sixteen commits. Smaller commits need less memory, larger ones are fewer.
const chunk = 1 << 13

// change is a change of what is rendered: of a service port, or of the static objects
// if both ports are nil and static is set.
type change struct {
	old, new         *proxy.ServicePort
	oldNode, newNode *proxy.Node
	static           bool
}

func (c *change) name() proxy.ServicePortName {
	switch {
	case c.new != nil:
		return c.new.Name
	case c.old != nil:
		return c.old.Name
	}
	return proxy.ServicePortName{}
}

// Apply implements [proxy.Backend].
func (r *reconciler[K, V]) Apply(ctx context.Context, old, new proxy.Snapshot) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	full := old.IsZero() || !r.known
	var err error
	if full {
		err = r.applyFull(ctx, new, false)
	} else {
		err = r.applyChanges(ctx, old, new)
	}
	if errors.Is(err, ErrReplace) {
		full = true
		err = r.applyFull(ctx, new, true)
	}
	if err == nil {
		return nil
	}
	failed, some := errors.AsType[proxy.PortErrors](err)
	if some && !old.IsZero() && (full || !old.Node().Equal(new.Node())) {
		// Those ports were removed, or are as they were for another node: not as
		// in old.
		err = fmt.Errorf("%w; failed ports: %w", proxy.ErrDataplaneLost, failed)
	}
	r.known = r.known && !old.Achieved(new, err).IsZero()
	return err
}

// applyChanges applies the difference of two known snapshots, in one commit if possible.
func (r *reconciler[K, V]) applyChanges(ctx context.Context, old, new proxy.Snapshot) error {
	changes := r.planner.changes[:0]
	if !old.Node().Equal(new.Node()) {
		changes = nodeChanges(changes, old, new)
	} else {
		for c := range new.Changes(old) {
			changes = append(changes, change{old: c.Old, new: c.New, oldNode: old.Node(), newNode: new.Node()})
		}
	}
	err := r.tryAdmitted(ctx, changes)
	clear(changes)
	r.planner.changes = changes[:0]
	return err
}

// asLost turns a conflict between known states into [proxy.ErrDataplaneLost].
func (r *reconciler[K, V]) asLost(err error) error {
	if r.known && errors.Is(err, ErrConflict) && !errors.Is(err, proxy.ErrDataplaneLost) {
		return fmt.Errorf("%w: %w", proxy.ErrDataplaneLost, err)
	}
	return err
}

// nodeChanges renders everything again: all objects may depend on the node.
func nodeChanges(changes []change, old, new proxy.Snapshot) []change {
	changes = append(changes, change{static: true, oldNode: old.Node(), newNode: new.Node()})
	for p := range new.All() {
		was, _ := old.Get(p.Name)
		changes = append(changes, change{old: was, new: p, oldNode: old.Node(), newNode: new.Node()})
	}
	for p := range old.All() {
		if _, ok := new.Get(p.Name); !ok {
			changes = append(changes, change{old: p, oldNode: old.Node(), newNode: new.Node()})
		}
	}
	return changes
}

// portSize estimates how many objects a service port needs: most are for endpoints.
func portSize(p *proxy.ServicePort) int { return 2 * (len(p.Cluster) + len(p.Local) + 1) }

func sizeOf(s proxy.Snapshot) int {
	n := 0
	for p := range s.All() {
		n += portSize(p)
	}
	return n
}

// pieceSize returns how many of all objects go into one commit. The replacement may choose
// the number of commits.
func (r *reconciler[K, V]) pieceSize(all int) int {
	if r.replacement != nil && r.replacement.Pieces() > 0 {
		return all/r.replacement.Pieces() + 1
	}
	return max(chunk, all/16)
}

// applyFull makes the dataplane match new, whatever its state. If rebuild is set, existing
// objects cannot be changed in place.
func (r *reconciler[K, V]) applyFull(ctx context.Context, new proxy.Snapshot, rebuild bool) error {
	r.known = false
	r.owners = map[K]owned[V]{}
	defer func() {
		r.leftovers, r.replacement = nil, nil
		r.planner = planner[K, V]{} // changes need far less memory
	}()
	if err := r.begin(ctx, new, rebuild); err != nil {
		return err
	}
	all := sizeOf(new)
	limit := r.pieceSize(all)
	failed, sized := proxy.PortErrors{}, false
	for changes := range pieces(new, limit) {
		if err := r.applyPiece(ctx, changes, failed); err != nil {
			return err
		}
		if !sized {
			r.growOwners(all / limit)
			sized = true
		}
	}
	if r.mustKeep(new, failed) {
		return notReplaced(failed)
	}
	if err := r.finish(ctx); err != nil {
		return err
	}
	r.known = true
	if len(failed) > 0 {
		return failed
	}
	return nil
}

// pieces returns the changes that make everything, in pieces of a size.
func pieces(new proxy.Snapshot, limit int) iter.Seq[[]change] {
	return func(yield func([]change) bool) {
		piece, size := []change{{static: true, newNode: new.Node()}}, 0
		for p := range new.All() {
			piece = append(piece, change{new: p, newNode: new.Node()})
			if size += portSize(p); size < limit {
				continue
			}
			if !yield(piece) {
				return
			}
			piece, size = piece[:0], 0
		}
		if len(piece) > 0 {
			yield(piece)
		}
	}
}

// applyPiece commits a piece, and adds the service ports that fail.
func (r *reconciler[K, V]) applyPiece(ctx context.Context, piece []change, failed proxy.PortErrors) error {
	err := r.tryAdmitted(ctx, piece)
	some, ok := errors.AsType[proxy.PortErrors](err)
	if !ok {
		return err
	}
	if r.replacement != nil && errors.Is(err, ErrExhausted) {
		return notReplaced(some)
	}
	maps.Copy(failed, some)
	return nil
}

// growOwners pre-sizes the map of owners for a load that is committed in several pieces.
func (r *reconciler[K, V]) growOwners(times int) {
	if times < 2 {
		return
	}
	owners := make(map[K]owned[V], len(r.owners)*times*7/8)
	maps.Copy(owners, r.owners)
	r.owners = owners
}

// mustKeep reports whether a port failed because the system is out of resources, and has
// existing objects that still serve: they would be removed as leftovers.
func (r *reconciler[K, V]) mustKeep(new proxy.Snapshot, failed proxy.PortErrors) bool {
	for name, err := range failed {
		port, _ := new.Get(name)
		if !errors.Is(err, ErrExhausted) || port == nil {
			continue
		}
		for _, o := range r.render(new.Node(), port, nil) {
			if _, found := r.leftovers[o.Key]; found && !o.Key.Shared() {
				return true
			}
		}
	}
	return false
}

// notReplaced returns the error for existing objects that stay in effect, because the system
// ran out of resources while their replacement was made. It names the failed ports as text
// only, and is no [proxy.PortErrors]: the other ports have not taken effect either.
func notReplaced(failed proxy.PortErrors) error {
	return fmt.Errorf("%w: the existing objects stay in effect: %s", ErrExhausted, failed.Error())
}

// begin lists the existing objects, unless they will be replaced.
func (r *reconciler[K, V]) begin(ctx context.Context, new proxy.Snapshot, rebuild bool) error {
	if replacer, can := r.target.(Replacer[K, V]); can {
		r.replacement = replacer.Replace(ctx, new, rebuild)
	}
	if r.replacement != nil {
		return nil
	}
	return r.list(ctx)
}

// finish removes the leftovers after all other objects were made. If that conflicts with an
// object that List did not yield, everything must be replaced.
func (r *reconciler[K, V]) finish(ctx context.Context) error {
	if r.replacement != nil {
		return r.replacement.Finish(ctx)
	}
	var ops []Op[K, V]
	for k, v := range r.leftovers {
		ops = append(ops, Op[K, V]{Kind: Remove, Key: k, Value: v})
	}
	if _, can := r.target.(Replacer[K, V]); can {
		err := r.commit(ctx, ops)
		if errors.Is(err, ErrConflict) {
			return fmt.Errorf("%w: %w", ErrReplace, err)
		}
		return err
	}
	return r.remove(ctx, ops)
}

// remove removes objects together. If that fails it halves them until it has found those that
// the target keeps, and removes all others.
func (r *reconciler[K, V]) remove(ctx context.Context, ops []Op[K, V]) error {
	err := r.commit(ctx, ops)
	if err == nil || len(ops) == 1 || final(ctx, err) {
		return err
	}
	half := len(ops) / 2 // those before it may refer to those after it
	err = r.remove(ctx, ops[:half])
	if err != nil && final(ctx, err) {
		return err
	}
	return errors.Join(err, r.remove(ctx, ops[half:]))
}

func (r *reconciler[K, V]) list(ctx context.Context) error {
	r.leftovers = map[K]V{}
	for o, err := range r.target.List(ctx) {
		if err != nil {
			return fmt.Errorf("listing the objects: %w", err)
		}
		r.leftovers[o.Key] = o.Value
	}
	return nil
}

// try commits changes together. If that fails it halves them until it has found the
// service ports that the target refuses, and commits all others.
func (r *reconciler[K, V]) try(ctx context.Context, changes []change) error {
	plan := r.planner.plan(r, changes)
	err := r.asLost(r.commit(ctx, plan.ops))
	if err == nil {
		r.record(plan)
		return nil
	}
	for i := range plan.claimed {
		r.leftovers[plan.claimed[i].Key] = plan.claimed[i].Value
	}
	if final(ctx, err) || changes[0].static && len(changes) == 1 {
		return err
	}
	if len(changes) == 1 {
		return proxy.PortErrors{changes[0].name(): err}
	}
	if plan.moved {
		// In parts, the former owner could remove what the new one has just added.
		return fmt.Errorf("%w: an object moves between service ports, and their changes could not be made in one commit: %w", proxy.ErrDataplaneLost, err)
	}
	half := len(changes) / 2
	if changes[0].static {
		half = 1
	}
	err = r.try(ctx, changes[:half])
	if _, some := errors.AsType[proxy.PortErrors](err); err != nil && !some {
		return err
	}
	return JoinErrors(r.known, err, r.try(ctx, changes[half:]))
}

// final reports whether dividing a commit cannot help: no single service port caused the
// error. ErrUnsupported is not final: a feature that all ports need fails with the static
// objects; otherwise single ports need it.
func final(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, ErrReplace) || errors.Is(err, ErrUnavailable) || errors.Is(err, proxy.ErrDataplaneLost)
}

// record updates the owners of shared objects after a plan was committed.
func (r *reconciler[K, V]) record(p *plan[K, V]) {
	for i := range p.shared {
		d := &p.shared[i]
		o := r.owners[d.key]
		o.count += d.count
		if d.valued {
			o.value = d.value
		}
		if o.count > 0 {
			r.owners[d.key] = o
		} else {
			delete(r.owners, d.key)
		}
	}
}
