package prommetrics

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
)

// The kinds of objects that are timed.
const (
	serviceKind = iota
	sliceKind
	kinds
)

func kindName(kind int) string { return [...]string{"Service", "EndpointSlice"}[kind] }

// maxTriggers is how many triggers of one Service are kept at most while the
// dataplane takes none of them.
const maxTriggers = 100

// changes follow what a tracker hears until it is in the kernel.
type changes struct {
	start time.Time

	mu     sync.Mutex
	synced bool
	// total counts the objects heard of, pending those that no snapshot has
	// been taken for since, both by kind.
	total, pending [kinds]int
	// heard are the changes of Services that the Runner does not know yet,
	// taken those that are not in the kernel yet.
	heard, taken map[types.NamespacedName]*change
	// wake, if not nil, ends the wait for a snapshot.
	wake context.CancelFunc
}

// change is all that happened to one Service in the meantime.
type change struct {
	// heard is when the tracker heard of it first, by kind; zero for never.
	heard [kinds]time.Time
	taken time.Time
	// triggers are when the pods had changed that EndpointSlices tell of.
	triggers []trigger
}

type trigger struct {
	at     time.Time
	family v1.IPFamily
}

func newChanges(start time.Time) changes {
	return changes{start: start, heard: map[types.NamespacedName]*change{}, taken: map[types.NamespacedName]*change{}}
}

// hear notes that a Service, or an EndpointSlice of it, has changed. It leaves
// c locked until done is called, so that what is noted and what the tracker is
// told between the two go into the same snapshot. The name may be empty.
func (c *changes) hear(kind int, service types.NamespacedName, triggers ...trigger) (done func()) {
	c.mu.Lock()
	c.total[kind]++
	c.pending[kind]++
	if c.synced && service.Name != "" {
		x := c.heard[service]
		if x == nil {
			x = &change{}
			c.heard[service] = x
		}
		if x.heard[kind].IsZero() {
			x.heard[kind] = time.Now()
		}
		for _, t := range triggers {
			if t.at.After(c.start) {
				x.addTrigger(t)
			}
		}
	}
	return c.done
}

// done ends what was locked, and lets a waiting Runner look.
func (c *changes) done() {
	if c.wake != nil {
		c.wake()
		c.wake = nil
	}
	c.mu.Unlock()
}

func (x *change) addTrigger(t trigger) {
	if len(x.triggers) < maxTriggers {
		x.triggers = append(x.triggers, t)
	}
}

// take settles what was heard, with the lock held: next holds all of it, or
// nothing came of it. What belongs to the initial state is not followed.
func (c *changes) take(after, next proxy.Snapshot, now time.Time) {
	if !after.IsZero() && len(c.heard) > 0 {
		for d := range next.Changes(after) {
			name := nameOf(d)
			if x := c.heard[name]; x != nil {
				delete(c.heard, name)
				x.taken = now
				c.follow(name, x)
			}
		}
	}
	c.forget()
}

// forget drops what was heard and is of no consequence.
func (c *changes) forget() {
	clear(c.heard)
	c.pending = [kinds]int{}
}

// follow adds a change to those that are on their way.
func (c *changes) follow(name types.NamespacedName, x *change) {
	old := c.taken[name]
	if old == nil {
		c.taken[name] = x
		return
	}
	for kind, at := range x.heard {
		if old.heard[kind].IsZero() {
			old.heard[kind] = at
		}
	}
	for _, t := range x.triggers {
		old.addTrigger(t)
	}
}

// finish gives the changes that are in the kernel now: all but those of the
// service ports that failed.
func (c *changes) finish(failed proxy.PortErrors) map[types.NamespacedName]*change {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.taken) == 0 {
		return nil
	}
	finished := c.taken
	c.taken = map[types.NamespacedName]*change{}
	for port := range failed {
		if x := finished[port.NamespacedName]; x != nil {
			c.taken[port.NamespacedName] = x
			delete(finished, port.NamespacedName)
		}
	}
	return finished
}

func nameOf(c proxy.Change) types.NamespacedName {
	if c.New != nil {
		return c.New.Name.NamespacedName
	}
	return c.Old.Name.NamespacedName
}
