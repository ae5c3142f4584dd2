package backends

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vipkit/vipkit/proxy"
)

// held is what the kernel holds of an object.
type held[V comparable] struct {
	exists bool
	value  V
}

// failure is a change that was not, or not wholly, made.
type failure[K Key] struct {
	change[K]
	err error
}

// forget drops all knowledge of the kernel.
func (r *reconciler[K, V]) forget() {
	r.env, r.touched, r.owners, r.pending, r.failed = nil, false, nil, nil, nil
}

// try makes changes, and records those that fail. It returns an error if no single service
// port caused it.
func (r *reconciler[K, V]) try(ctx context.Context, changes []change[K]) error {
	plan := r.planner.plan(r, changes)
	out := r.commit(ctx, plan.ops)
	if out.Lost != nil || len(out.Failed) > 0 {
		return r.isolate(ctx, changes, plan, out)
	}
	r.record(plan)
	return nil
}

// isolate finds what has failed, and tries everything else again, after a plan that was not, or not wholly, carried out.
func (r *reconciler[K, V]) isolate(ctx context.Context, changes []change[K], plan *plan[K, V], out Outcome) error {
	err := out.Err()
	if r.loses(changes, &out, err) {
		return asLost(err)
	}
	var failed map[int]error
	ends := final(ctx, err)
	if !out.Together && !ends {
		failed = r.blame(changes, plan, &out)
		if len(failed) == 0 {
			r.record(plan)
			r.stayed(plan, &out)
			return nil
		}
	}
	r.undone(plan, &out)
	switch {
	case ends || changes[0].static && (len(changes) == 1 || failed[0] != nil):
		return cmp.Or(failed[0], err)
	case plan.moved:
		// If only some are made, the former owner could remove what the new one has just added.
		return fmt.Errorf("%w: an object moves between service ports, and their changes could not be made in one commit: %w", proxy.ErrDataplaneLost, err)
	case len(failed) > 0:
		return r.tryOthers(ctx, changes, failed)
	case len(changes) == 1:
		return r.tryOthers(ctx, changes, map[int]error{0: err})
	}
	half := len(changes) / 2
	if changes[0].static {
		half = 1
	}
	if err = r.try(ctx, changes[:half]); err != nil {
		return err
	}
	return r.try(ctx, changes[half:])
}

// loses reports whether the state is lost after an outcome. What a failed service port has may refer to a
// leftover: then a conflict is not the work of another program.
func (r *reconciler[K, V]) loses(changes []change[K], out *Outcome, err error) bool {
	mayBeInUse := changes[0].left != nil && len(r.failed) > 0
	return out.Lost != nil || r.env != nil && !mayBeInUse && errors.Is(err, ErrConflict)
}

// tryOthers records changes that have failed, and tries all others again from what the kernel holds now:
// after a failure, a target does not carry out the removals of the others either.
func (r *reconciler[K, V]) tryOthers(ctx context.Context, changes []change[K], failed map[int]error) error {
	var rest []change[K]
	for i := range changes {
		if err := failed[i]; err != nil {
			r.failed = append(r.failed, failure[K]{changes[i], err})
		} else {
			rest = append(rest, changes[i])
		}
	}
	if len(rest) == 0 {
		return nil
	}
	return r.try(ctx, rest)
}

// blame returns the changes that failed, by index, each with the reason. If objects could not be made, these are
// the changes that need one of them. Otherwise they are the removals of service ports and of leftovers of which
// an object could not be removed.
func (r *reconciler[K, V]) blame(changes []change[K], plan *plan[K, V], out *Outcome) map[int]error {
	made, removed := map[K]error{}, map[K]error{}
	for i, err := range out.Failed {
		if o := &plan.ops[i]; o.Kind == Remove {
			removed[o.Key] = err
		} else {
			made[o.Key] = err
		}
	}
	failed := map[int]error{}
	for i := range changes {
		var err error
		switch c := &changes[i]; {
		case c.left != nil:
			err = removed[*c.left]
		case len(made) > 0:
			err = r.needs(rendering{c.newEnv, c.new, c.static}, made)
		case len(removed) > 0 && c.new == nil:
			err = r.needs(rendering{c.oldEnv, c.old, false}, removed)
		}
		if err != nil {
			failed[i] = err
		}
	}
	return failed
}

// needs returns the error of an object that is rendered.
func (r *reconciler[K, V]) needs(s rendering, errs map[K]error) error {
	for _, o := range collect(nil, r.render, s) {
		if err := errs[o.Key]; err != nil {
			return err
		}
	}
	return nil
}

// undone restores what is known of the kernel after a plan that was not, or not wholly, carried out.
func (r *reconciler[K, V]) undone(p *plan[K, V], out *Outcome) {
	if r.pending == nil {
		r.pending = map[K]held[V]{}
	}
	for i := range p.claimed {
		r.pending[p.claimed[i].key] = p.claimed[i].held
	}
	for i := range p.ops {
		if o := &p.ops[i]; out.Failed[i] == nil {
			r.pending[o.Key] = held[V]{exists: o.Kind != Remove, value: o.Value}
			r.touched = true
		}
	}
}

// stayed records what the kernel holds of the objects of failed ops although the changes were made: an object
// that could not be removed, or, of a port that failed before, one that could not be made again.
func (r *reconciler[K, V]) stayed(p *plan[K, V], out *Outcome) {
	if r.pending == nil {
		r.pending = map[K]held[V]{}
	}
	for i := range out.Failed {
		o := &p.ops[i]
		h := held[V]{exists: o.Kind == Remove, value: o.Value}
		for j := 0; j < len(p.claimed) && o.Kind != Remove; j++ {
			if c := &p.claimed[j]; c.key == o.Key {
				h = c.held
			}
		}
		r.pending[o.Key] = h
	}
}

// sweep removes objects that nothing needs. It keeps the objects that a failed service port may need, and
// returns why other objects could not be removed.
func (r *reconciler[K, V]) sweep(ctx context.Context) (stayed, err error) {
	var changes []change[K]
	needed := r.neededByFailed()
	for k, h := range r.pending {
		if h.exists && !needed[k] && r.owners[k].count == 0 {
			changes = append(changes, change[K]{left: &k})
		}
	}
	if len(changes) == 0 {
		return nil, nil
	}
	slices.SortFunc(changes, func(a, b change[K]) int { return cmp.Compare((*b.left).Rank(), (*a.left).Rank()) })
	failed := len(r.failed)
	err = r.try(ctx, changes)
	var errs []error
	for _, f := range r.failed[failed:] {
		errs = append(errs, f.err)
	}
	r.failed = r.failed[:failed]
	return errors.Join(errs...), err
}

// neededByFailed returns the objects that failed service ports need as they were, or as they should be.
func (r *reconciler[K, V]) neededByFailed() map[K]bool {
	needed := map[K]bool{}
	for i := range r.failed {
		c := &r.failed[i].change
		for _, s := range [...]rendering{{c.oldEnv, c.old, false}, {c.newEnv, c.new, false}} {
			for _, o := range collect(nil, r.render, s) {
				needed[o.Key] = true
			}
		}
	}
	return needed
}

// result returns the error of an Apply: err, or the service ports that failed, with those that cannot
// be programmed.
func (r *reconciler[K, V]) result(refused proxy.PortErrors, err error) error {
	if err != nil || len(r.failed)+len(refused) == 0 {
		return err
	}
	if refused == nil {
		refused = proxy.PortErrors{}
	}
	for i := range r.failed {
		refused[r.failed[i].name()] = r.failed[i].err
	}
	return refused
}

// record updates the owners of shared objects after a plan was committed.
func (r *reconciler[K, V]) record(p *plan[K, V]) {
	r.touched = true
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
