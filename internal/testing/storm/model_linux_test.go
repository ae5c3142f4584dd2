package storm

import (
	"context"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// model knows what the dataplane should contain, now and at earlier times. Its methods may
// be called from any goroutine.
type model struct {
	oracle *cluster.Oracle

	mu    sync.Mutex
	inv   *inventory
	specs map[int]*cluster.Sample
	node  int
	// snapshots has the snapshot after each message, by sequence number; the oldest ones
	// are dropped. applied has the number of the last message that each agent has
	// reported as applied.
	snapshots []proxy.Snapshot
	applied   map[string]int
	failure   string // error of the last Apply; empty if it succeeded
	verified  time.Time
	// shared is the first message that an agent with another identity may have had in the
	// dataplane, since the agent verified it alone; 0: none. The other agent ended at sharedEnd.
	shared    int
	sharedEnd time.Time
}

func newModel(o *cluster.Oracle) *model {
	m := &model{oracle: o, inv: newInventory(trackerOptions()), specs: map[int]*cluster.Sample{}, applied: map[string]int{}, snapshots: make([]proxy.Snapshot, 1)}
	m.inv.tracker.Synced()
	return m
}

// set applies a change, and returns the message for agents.
func (m *model) set(t testing.TB, c *change) *message {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inv.apply(c)
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
	s, err := m.inv.Next(context.Background(), proxy.Snapshot{})
	testenv.NoError(t, err)
	m.snapshots = append(m.snapshots, s)
	if old := m.least() - storedSnapshots; old > 0 {
		m.snapshots[old] = proxy.Snapshot{}
	}
	return &message{Sequence: len(m.snapshots) - 1, change: *c}
}

// storedSnapshots is the number of snapshots kept before the one that is applied, for
// connections that began while these were applied.
const storedSnapshots = 200

// all returns a message with all Services and the Node.
func (m *model) all() *message {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &message{Sequence: len(m.snapshots) - 1, change: change{Services: maps.Clone(m.specs), Node: new(m.node)}}
}

// least returns the last message that all agents have applied.
func (m *model) least() int {
	least := len(m.snapshots) - 1
	for _, applied := range m.applied {
		least = min(least, applied)
	}
	return least
}

// addAgent records that an agent starts, which has applied nothing yet.
func (m *model) addAgent(identity string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.applied[identity]; !known {
		m.applied[identity] = m.least()
	}
}

// share records that an agent with another identity starts.
func (m *model) share() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sharedEnd = (time.Time{}); m.shared == 0 {
		m.shared = max(m.least(), 1)
	}
}

// unshare records that the agent with another identity has removed its rules.
func (m *model) unshare() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sharedEnd = time.Now()
}

// sinceShared is since for session affinity: an agent of nftables stores clients of endpoints that
// another one has chosen.
func (m *model) sinceShared(sequence int) []proxy.Snapshot {
	m.mu.Lock()
	if m.shared > 0 {
		sequence = min(sequence, m.shared)
	}
	m.mu.Unlock()
	return m.since(sequence)
}

// removeAgent records that an agent has ended and removed its rules.
func (m *model) removeAgent(identity string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.applied, identity)
}

// recordEvent records an event of an agent.
func (m *model) recordEvent(identity string, e event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, known := m.applied[identity]
	if e.Verified != nil {
		if m.verified = *e.Verified; !m.sharedEnd.IsZero() && m.verified.After(m.sharedEnd) {
			m.shared, m.sharedEnd = 0, time.Time{}
		}
		return
	}
	if m.failure = e.Failed; e.Failed == "" && known {
		m.applied[identity] = max(m.applied[identity], e.Applied)
	}
}

// verifiedSince reports whether an agent has verified the whole dataplane in a check that
// began after a time.
func (m *model) verifiedSince(since time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.verified.After(since)
}

// now returns the newest snapshot, the number of the last message that all agents have
// applied, the number of the last message, and the error of the last Apply.
func (m *model) now() (newest proxy.Snapshot, applied, sequence int, failure string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.snapshots[len(m.snapshots)-1], m.least(), len(m.snapshots) - 1, m.failure
}

// since returns all snapshots from a message on: any of them may have been in the
// dataplane since then. It returns nil if there are too many, or if the first is dropped.
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
