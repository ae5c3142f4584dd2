package storm

import (
	"context"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/vipkit/vipkit/proxy"
)

// model is what the dataplane must be, now and in the time before. Its methods may be
// called from any goroutine.
type model struct {
	mu    sync.Mutex
	stuff *inventory
	specs map[int]*spec
	node  int
	// snapshots are those after each message, by its sequence number; the oldest
	// ones are forgotten. applied is the last message that the dataplane of each agent
	// is known to hold.
	snapshots []proxy.Snapshot
	applied   map[string]int
	failure   string // of the last Apply, as long as no later one succeeds
	verified  time.Time
}

func newModel() *model {
	m := &model{stuff: newInventory(trackerOptions()), specs: map[int]*spec{}, applied: map[string]int{}, snapshots: make([]proxy.Snapshot, 1)}
	m.stuff.tracker.Synced()
	return m
}

// set takes a change, and gives the message about it.
func (m *model) set(t testing.TB, c *change) *message {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stuff.apply(c)
	for number, s := range c.Services {
		if s == nil {
			delete(m.specs, number)
		} else {
			m.specs[number] = s
		}
	}
	if c.Node != nil {
		m.node = *c.Node
	}
	s, err := m.stuff.Next(context.Background(), proxy.Snapshot{})
	if err != nil {
		t.Fatal(err)
	}
	m.snapshots = append(m.snapshots, s)
	if old := m.least() - remembered; old > 0 {
		m.snapshots[old] = proxy.Snapshot{}
	}
	return &message{Sequence: len(m.snapshots) - 1, change: *c}
}

// remembered is how many snapshots before the one that is applied are remembered, for
// connections that began then.
const remembered = 200

// all gives a message that has all there is.
func (m *model) all() *message {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &message{Sequence: len(m.snapshots) - 1, change: change{Services: maps.Clone(m.specs), Node: new(m.node)}}
}

// least is what all agents are known to have applied.
func (m *model) least() int {
	least := len(m.snapshots) - 1
	for _, applied := range m.applied {
		least = min(least, applied)
	}
	return least
}

// joins takes that there is an agent, which has nothing of its own yet.
func (m *model) joins(identity string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.applied[identity]; !known {
		m.applied[identity] = m.least()
	}
}

// leaves takes that an agent has ended and removed all that it had made.
func (m *model) leaves(identity string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.applied, identity)
}

// heard takes what an agent tells.
func (m *model) heard(identity string, e event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, known := m.applied[identity]
	if e.Verified != nil {
		m.verified = *e.Verified
		return
	}
	if m.failure = e.Failed; e.Failed == "" && known {
		m.applied[identity] = max(m.applied[identity], e.Applied)
	}
}

// looked reports whether an agent has found the whole dataplane right since a time.
func (m *model) looked(since time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.verified.After(since)
}

// now gives the newest snapshot, what is known to be applied, and what the last Apply
// failed with.
func (m *model) now() (newest proxy.Snapshot, applied, sequence int, failure string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.snapshots[len(m.snapshots)-1], m.least(), len(m.snapshots) - 1, m.failure
}

// since gives all snapshots from one on: what the dataplane may have held since then.
// There are none if these are too many to tell.
func (m *model) since(sequence int) []proxy.Snapshot {
	const most = 30
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.snapshots[sequence:]
	if len(all) > most || all[0].IsZero() {
		return nil
	}
	return append([]proxy.Snapshot(nil), all...)
}
