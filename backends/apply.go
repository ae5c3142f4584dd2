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

// change is a change of what is rendered: of a service port; of the static objects if static is
// set; or, if left is not nil, of an object that nothing needs.
type change[K Key] struct {
	old, new *proxy.ServicePort
	// oldEnv is nil if nothing is known to be rendered before.
	oldEnv, newEnv *Env
	static         bool
	left           *K
}

func (c *change[K]) name() proxy.ServicePortName {
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
	full := old.IsZero() || r.env == nil
	before := r.env
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
	if some && (full || r.env != before) && hasAny(old, failed) {
		// Such a port was removed, or is as it was in another world: not as in old.
		err = fmt.Errorf("%w; failed ports: %w", proxy.ErrDataplaneLost, failed)
	}
	if old.Achieved(new, err).IsZero() {
		r.env = nil
	}
	return err
}

// hasAny reports whether a snapshot has one of some ports.
func hasAny(s proxy.Snapshot, ports proxy.PortErrors) bool {
	for name := range ports {
		if _, found := s.Get(name); found {
			return true
		}
	}
	return false
}

// applyChanges applies the difference of two known snapshots, in one commit if possible.
func (r *reconciler[K, V]) applyChanges(ctx context.Context, old, new proxy.Snapshot) error {
	changes, env := r.planner.changes[:0], r.look(new)
	if env != r.env {
		changes = r.envChanges(changes, env, old, new)
	} else {
		for c := range new.Changes(old) {
			changes = append(changes, change[K]{old: c.Old, new: c.New, oldEnv: env, newEnv: env})
		}
		changes = r.again(changes, old)
	}
	before := r.failed
	r.failed, r.touched = nil, false
	changes, refused := r.admit(changes)
	err := r.try(ctx, changes)
	if err == nil && len(r.pending) > 0 {
		_, err = r.sweep(ctx)
	}
	clear(changes)
	r.planner.changes = changes[:0]
	switch {
	case err == nil:
		r.env = env
	case !r.touched:
		r.failed = before // pending has what they have left
	case !errors.Is(err, ErrReplace) && !errors.Is(err, proxy.ErrDataplaneLost):
		err = fmt.Errorf("%w: change partly applied: %w", proxy.ErrDataplaneLost, err)
	}
	return r.result(refused, err)
}

// again appends the ports that failed in the last Apply and should be as they were before it: the
// kernel may have a part of that change.
func (r *reconciler[K, V]) again(changes []change[K], old proxy.Snapshot) []change[K] {
	if len(r.pending) == 0 || len(r.failed) == 0 {
		return changes
	}
	changed := make(map[proxy.ServicePortName]bool, len(changes))
	for i := range changes {
		changed[changes[i].name()] = true
	}
	for _, f := range r.failed {
		if was, _ := old.Get(f.name()); was != nil && !changed[f.name()] {
			changes = append(changes, change[K]{old: was, new: was, oldEnv: r.env, newEnv: r.env})
		}
	}
	return changes
}

// envChanges renders everything again: all objects may depend on the world.
func (r *reconciler[K, V]) envChanges(changes []change[K], env *Env, old, new proxy.Snapshot) []change[K] {
	changes = append(changes, change[K]{static: true, oldEnv: r.env, newEnv: env})
	for p := range new.All() {
		was, _ := old.Get(p.Name)
		changes = append(changes, change[K]{old: was, new: p, oldEnv: r.env, newEnv: env})
	}
	for p := range old.All() {
		if _, ok := new.Get(p.Name); !ok {
			changes = append(changes, change[K]{old: p, oldEnv: r.env, newEnv: env})
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
	r.forget()
	r.owners = map[K]owned[V]{}
	defer func() {
		r.replacement = nil
		r.planner = planner[K, V]{} // changes need far less memory
	}()
	if err := r.begin(ctx, new, rebuild); err != nil {
		return err
	}
	env := r.look(new)
	refused := proxy.PortErrors{}
	for changes := range pieces[K](env, new, r.pieceSize(sizeOf(new))) {
		admitted, some := r.admit(changes)
		maps.Copy(refused, some)
		if err := r.try(ctx, admitted); err != nil {
			return err
		}
	}
	if err := r.finish(ctx); err != nil {
		return err
	}
	r.touched, r.env = false, env
	r.pending = maps.Collect(maps.All(r.pending)) // a map keeps the memory of what List yielded
	return r.result(refused, nil)
}

// pieces returns the changes that make everything, in pieces of a size.
func pieces[K Key](env *Env, new proxy.Snapshot, limit int) iter.Seq[[]change[K]] {
	return func(yield func([]change[K]) bool) {
		piece, size := []change[K]{{static: true, newEnv: env}}, 0
		for p := range new.All() {
			piece = append(piece, change[K]{new: p, newEnv: env})
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

// begin lists the existing objects, unless they will be replaced.
func (r *reconciler[K, V]) begin(ctx context.Context, new proxy.Snapshot, rebuild bool) error {
	if r.able.Replace != nil {
		r.replacement = r.able.Replace(ctx, new, rebuild)
	}
	if r.replacement != nil {
		return nil
	}
	return r.list(ctx)
}

// list begins with the objects that exist as the only knowledge.
func (r *reconciler[K, V]) list(ctx context.Context) error {
	r.pending = map[K]held[V]{}
	for o, err := range r.target.List(ctx) {
		if err != nil {
			return fmt.Errorf("listing the objects: %w", err)
		}
		r.pending[o.Key] = held[V]{exists: true, value: o.Value}
	}
	return nil
}

// finish removes what no service port needs after all other objects were made. If that conflicts
// with an object that List did not yield, everything must be replaced. While service ports fail, their
// former objects may refer to what stays.
func (r *reconciler[K, V]) finish(ctx context.Context) error {
	if r.replacement != nil {
		return r.replacement.Finish(ctx)
	}
	stayed, err := r.sweep(ctx)
	switch {
	case err != nil || len(r.failed) > 0:
		return err
	case r.able.Replace != nil && errors.Is(stayed, ErrConflict):
		return fmt.Errorf("%w: %w", ErrReplace, stayed)
	}
	return stayed
}
