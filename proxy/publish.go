package proxy

import (
	"context"

	"github.com/vipkit/vipkit/internal/pmap"
)

// Next implements [Source]. The [Snapshot.ChangeTimes] of the snapshot are about the changes
// since after.
func (t *ServiceChangeTracker) Next(ctx context.Context, after Snapshot) (Snapshot, error) {
	for {
		s, wait := t.poll(after)
		if wait == nil {
			return s, nil
		}
		select {
		case <-ctx.Done():
			return Snapshot{}, ctx.Err()
		case <-wait:
		}
	}
}

// poll returns the newest snapshot, or a channel to wait on if that has after's
// generation or does not exist yet.
func (t *ServiceChangeTracker) poll(after Snapshot) (Snapshot, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.changeLog.synced {
		t.publish()
		if t.snapshot.generation != after.generation {
			next := t.snapshot
			next.received = t.changeLog.since(after)
			return next, nil
		}
	}
	if t.waiting == nil {
		t.waiting = make(chan struct{})
	}
	return Snapshot{}, t.waiting
}

// publish updates the snapshot. A change that was reverted since the last one is no
// change.
func (t *ServiceChangeTracker) publish() {
	earlier, before := t.changeLog.recorded, t.snapshot.generation
	defer func() { t.changeLog.done(earlier, t.snapshot.generation != before) }()
	t.problems.checkNodePorts(&t.options, t.node)
	first := t.snapshot.generation == 0
	if !first && len(t.dirty) == 0 && len(t.removed) == 0 && !t.problems.stale && t.snapshot.node == t.node {
		return
	}
	next := t.snapshot
	next.node = t.node
	next.ports = t.resolveDirty()
	next.problems = t.report(next.ports)
	if first || next.ports != t.snapshot.ports || next.node != t.snapshot.node || next.problems != t.snapshot.problems {
		next.generation++
		t.snapshot = next
	}
}

func (t *ServiceChangeTracker) resolveDirty() pmap.Map[ServicePortName, *ServicePort] {
	edit := t.snapshot.ports.Edit()
	for name := range t.removed {
		edit.Delete(name)
		t.changeLog.publish(name.NamespacedName)
	}
	for _, p := range t.dirty {
		p.dirtyIndex = 0
		if p.service.conflictsStale {
			p.service.conflictsStale = false
			t.problems.note(conflictKey(p.service.spec.name), p.service.conflicts())
		}
		if p.published == nil {
			// A port that was removed and added again with equal content is no change.
			p.published, _ = t.snapshot.ports.Get(p.spec.name)
		}
		port := t.resolve(p)
		if !p.published.Equal(port) {
			edit.Set(p.spec.name, port)
			t.changeLog.publish(p.spec.name.NamespacedName)
			p.published = port
		}
	}
	t.dirty = reuse(t.dirty)
	if len(t.removed) > 0 {
		t.removed = map[ServicePortName]struct{}{}
	}
	return edit.Map()
}

// reuse empties a list, without its references, so that they can be collected; and
// without its memory if it is unusually long.
func reuse(list []*portState) []*portState {
	if cap(list) > 4096 {
		return nil
	}
	clear(list)
	return list[:0]
}
