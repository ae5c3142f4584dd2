package backends

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/vipkit/vipkit/proxy"
)

// chunk is about how many objects of a first load go into one commit; a large load is
// divided into sixteen commits. Smaller commits need less memory, larger ones are fewer.
const chunk = 1 << 13

// change is one rendering that gives way to another: of a service port, or of
// the static objects where both ports are nil and static is set.
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
	full, before := old.IsZero() || !r.known, r.settled
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
	var failed proxy.PortErrors
	switch {
	case errors.As(err, &failed):
		if old.IsZero() || !full && old.Node().Equal(new.Node()) {
			break
		}
		// Those ports are gone, or as they were for another node, and not
		// as in old.
		r.known = false
		err = fmt.Errorf("%w where these failed: %w", proxy.ErrDataplaneLost, failed)
	case errors.Is(err, proxy.ErrDataplaneLost) || r.settled != before:
		r.known = false
	}
	return err
}

// applyChanges goes from one known state to another, in one commit.
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

// lost turns a conflict between known states into what it means.
func (r *reconciler[K, V]) lost(err error) error {
	if r.known && errors.Is(err, ErrConflict) && !errors.Is(err, proxy.ErrDataplaneLost) {
		return fmt.Errorf("%w: %w", proxy.ErrDataplaneLost, err)
	}
	return err
}

// nodeChanges renders everything anew: what the node is goes into all of it.
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

// portSize guesses how many objects a service port needs: most of them are
// endpoints.
func portSize(p *proxy.ServicePort) int { return 2 * (len(p.Cluster) + len(p.Local) + 1) }

func sizeOf(s proxy.Snapshot) int {
	n := 0
	for p := range s.All() {
		n += portSize(p)
	}
	return n
}

// pieceSize gives how many of all objects go into one commit: there are as many commits
// as the target says, if it says so.
func pieceSize(all, pieces int) int {
	if pieces > 0 {
		return all/pieces + 1
	}
	return max(chunk, all/16)
}

// applyFull goes from whatever is there to new. If anew is set, what is there cannot be
// changed in place.
func (r *reconciler[K, V]) applyFull(ctx context.Context, new proxy.Snapshot, anew bool) error {
	r.known = false
	r.owners = make(map[K]owned[V], sizeOf(new)/2)
	defer func() { r.leftovers = nil }()
	finish, pieces, replaces, err := r.begin(ctx, new, anew)
	if err != nil {
		return err
	}
	limit := pieceSize(sizeOf(new), pieces)
	failed := proxy.PortErrors{}
	changes := []change{{static: true, newNode: new.Node()}}
	size := 0
	flush := func() error {
		err := r.tryAdmitted(ctx, changes)
		changes, size = changes[:0], 0
		some, ok := errors.AsType[proxy.PortErrors](err)
		if !ok {
			return err
		}
		if replaces && errors.Is(err, ErrExhausted) {
			return unreplaced(some)
		}
		maps.Copy(failed, some)
		return nil
	}
	for p := range new.All() {
		changes = append(changes, change{new: p, newNode: new.Node()})
		if size += portSize(p); size >= limit {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	switch err := flush(); {
	case err != nil:
		return err
	case r.keepsBack(new, failed):
		return unreplaced(failed)
	}
	if err := finish(ctx); err != nil {
		return err
	}
	r.known = true
	if len(failed) > 0 {
		return failed
	}
	return nil
}

// keepsBack reports whether one of the ports that failed did so since the system is short
// of resources, and serves as it was found: that would be removed as what nobody wants.
func (r *reconciler[K, V]) keepsBack(new proxy.Snapshot, failed proxy.PortErrors) bool {
	for name, err := range failed {
		port, _ := new.Get(name)
		if !errors.Is(err, ErrExhausted) || port == nil {
			continue
		}
		for _, o := range r.render(new.Node(), port, nil) {
			if _, found := r.leftovers.find(o.Key); found && !o.Key.Shared() {
				return true
			}
		}
	}
	return false
}

// unreplaced says that the old objects stay in effect, because the system ran short of
// resources while their replacement was made. It names the ports that were refused as text
// only, and is no [proxy.PortErrors]: nothing of the other ports has taken effect either.
func unreplaced(failed proxy.PortErrors) error {
	return fmt.Errorf("%w: the old objects stay in effect: %s", ErrExhausted, failed.Error())
}

// begin looks at what there is, unless it is to be replaced. What finish does,
// when all is made, is to make everything else go.
func (r *reconciler[K, V]) begin(ctx context.Context, new proxy.Snapshot, anew bool) (finish func(context.Context) error, pieces int, replaces bool, err error) {
	if replacer, ok := r.target.(Replacer); ok {
		if yes, pieces := replacer.Replace(ctx, new, anew); yes {
			return replacer.Replaced, pieces, true, nil
		}
	}
	if err := r.list(ctx); err != nil {
		return nil, 0, false, err
	}
	return func(ctx context.Context) error { return r.removeLeftovers(ctx, anew) }, 0, false, nil
}

// removeLeftovers removes the objects that no service port has claimed. If that conflicts
// with something that List did not yield, everything is to be replaced.
func (r *reconciler[K, V]) removeLeftovers(ctx context.Context, anew bool) error {
	err := r.commit(ctx, r.leftovers.removals())
	if _, can := r.target.(Replacer); can && !anew && errors.Is(err, ErrConflict) {
		return fmt.Errorf("%w: %w", ErrReplace, err)
	}
	return err
}

func (r *reconciler[K, V]) list(ctx context.Context) error {
	var objects []Object[K, V]
	for o, err := range r.target.List(ctx) {
		if err != nil {
			return fmt.Errorf("listing the objects: %w", err)
		}
		objects = append(objects, o)
	}
	r.leftovers = newLeftovers(objects)
	return nil
}

// try commits changes together. If that fails it halves them until the service
// ports that the target refuses stand alone; all others are committed.
func (r *reconciler[K, V]) try(ctx context.Context, changes []change) error {
	plan := r.planner.plan(r, changes)
	err := r.lost(r.commit(ctx, plan.ops))
	if err == nil {
		r.settle(plan)
		return nil
	}
	r.leftovers.release(plan.claimed)
	if final(ctx, err) || changes[0].static && len(changes) == 1 {
		return err
	}
	if len(changes) == 1 {
		return proxy.PortErrors{changes[0].name(): err}
	}
	if plan.moved {
		// In parts, one might take away what another has just given.
		return fmt.Errorf("%w: an object moves between service ports, and their changes could not be made in one commit: %w", proxy.ErrDataplaneLost, err)
	}
	half := len(changes) / 2
	if changes[0].static {
		half = 1
	}
	failed := proxy.PortErrors{}
	for _, part := range [][]change{changes[:half], changes[half:]} {
		var some proxy.PortErrors
		switch err := r.try(ctx, part); {
		case errors.As(err, &some):
			maps.Copy(failed, some)
		case err != nil:
			return err
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return failed
}

// final reports whether an error is no matter of single service ports. What the
// system cannot do at all shows in the static objects; else a port asks for it.
func final(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, ErrReplace) || errors.Is(err, ErrUnavailable) || errors.Is(err, proxy.ErrDataplaneLost)
}

// settle takes note of a plan that was carried out.
func (r *reconciler[K, V]) settle(p *plan[K, V]) {
	r.settled++
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
