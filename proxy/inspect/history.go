package inspect

import (
	"slices"
	"sync"
	"time"

	"github.com/vipkit/vipkit/proxy"
)

// syncs is what the page tells of the Runner's syncs.
type syncs struct {
	// Last is the newest one; nil before the first one ends.
	Last *syncRecord
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
	End        time.Time
	Duration   time.Duration
	Full       bool
	Failed     bool
	Changed    int
	Operations int
}

// history is what the page keeps between requests: the numbers of syncs, and the last Sync whose Applied is known.
type history struct {
	mu      sync.Mutex
	syncs   syncs
	applied proxy.Sync
	// beside are the limits of another Runner.
	beside []*proxy.Problem
}

// state returns the last Sync that applied a snapshot, and all that is known of syncs.
func (h *history) state() (proxy.Sync, syncs) {
	h.mu.Lock()
	defer h.mu.Unlock()
	applied := h.applied
	applied.Limits = slices.Concat(applied.Limits, h.beside)
	return applied, h.syncs
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
	if s.Full && s.Operations > 0 && !h.applied.Applied.IsZero() {
		h.syncs.Repairs++
	}
	h.syncs.Last = &syncRecord{end, s.Duration, s.Full, s.Err != nil, s.Changed, int(s.Operations)}
	if !s.Applied.IsZero() {
		h.applied, h.syncs.Held = s, end
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
