package inspect

import (
	"slices"
	"sync"
	"time"

	"github.com/vipkit/vipkit/proxy"
)

// maxSyncs is how many syncs the page shows.
const maxSyncs = 60

// syncs is what the page tells of the Runner's syncs.
type syncs struct {
	// Recent are the last ones, the newest last.
	Recent []syncRecord
	// Count and Failed are the numbers of all syncs, and of those with an error.
	Count, Failed uint64
	// Repairs is the number of syncs that checked everything, and wrote to the kernel
	// although the dataplane had been programmed before.
	Repairs uint64
	// Error is that of the newest sync that failed; Errored says when it ended.
	Error   string
	Errored time.Time
	// Refused is the number of service ports that the last sync could not program.
	Refused int
	// Held is when what the dataplane holds became known last, Verified when all of it was
	// found to be right.
	Held, Verified time.Time
	// Watching says that the backend waits for changes of other programs; otherwise a resync
	// finds them, each Resync.
	Watching bool
	Resync   time.Duration
}

// syncRecord is one sync.
type syncRecord struct {
	Start      time.Time
	Duration   time.Duration
	Full       bool
	Failed     bool
	Changed    int
	Operations int
}

// Last returns the last sync, nil before the first one ends.
func (s *syncs) Last() *syncRecord {
	if len(s.Recent) == 0 {
		return nil
	}
	return &s.Recent[len(s.Recent)-1]
}

// End returns when the sync ended.
func (r *syncRecord) End() time.Time { return r.Start.Add(r.Duration) }

// history is what the page keeps between requests: the last Sync whose Applied is known, and
// the times of changes. It takes some 200 bytes for each service port that has changed since the
// first sync.
type history struct {
	mu    sync.Mutex
	syncs syncs
	held  proxy.Sync
	// beside are the limits of another Runner.
	beside []*proxy.Problem
	// began is when the first snapshot was applied; changed has the service ports that
	// changed after that.
	began   time.Time
	changed map[proxy.ServicePortName]time.Time
}

// state returns the last Sync that applied a snapshot, and all that is known of syncs.
func (h *history) state() (proxy.Sync, syncs) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.syncs
	all.Recent = append([]syncRecord(nil), all.Recent...)
	held := h.held
	held.Limits = slices.Concat(held.Limits, h.beside)
	return held, all
}

// changedAt returns when a service port changed last; since is the time from which on this is
// known.
func (h *history) changedAt(name proxy.ServicePortName) (at, since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed[name], h.began
}

func (h *history) synced(s proxy.Sync) {
	h.mu.Lock()
	defer h.mu.Unlock()
	end := s.Start.Add(s.Duration)
	h.syncs.Count++
	if h.syncs.Refused = len(s.Refused); s.Err != nil {
		h.syncs.Failed++
		h.syncs.Error, h.syncs.Errored = s.Err.Error(), end
	}
	if s.Full && s.Operations > 0 && !h.began.IsZero() {
		h.syncs.Repairs++
	}
	if len(h.syncs.Recent) == maxSyncs {
		h.syncs.Recent = append(h.syncs.Recent[:0], h.syncs.Recent[1:]...)
	}
	h.syncs.Recent = append(h.syncs.Recent, syncRecord{s.Start, s.Duration, s.Full, s.Err != nil, s.Changed, int(s.Operations)})
	if s.Applied.IsZero() {
		return
	}
	if h.began.IsZero() {
		h.began = end
	} else {
		h.change(s.Applied, end)
	}
	h.held, h.syncs.Held = s, end
}

// change notes which service ports differ from those held before.
func (h *history) change(applied proxy.Snapshot, at time.Time) {
	for c := range applied.Changes(h.held.Applied) {
		if c.New == nil {
			delete(h.changed, c.Old.Name)
		} else {
			h.changed[c.New.Name] = at
		}
	}
}

func (h *history) setBeside(limits []*proxy.Problem) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beside = limits
}

func (h *history) verify(proxy.Snapshot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.syncs.Verified = time.Now()
}
