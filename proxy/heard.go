package proxy

import (
	"iter"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Heard has the times of those changes of one Service that made a difference for this node.
type Heard struct {
	// Name is the Service.
	Name types.NamespacedName
	// Service is when the tracker received the first change of the Service itself,
	// EndpointSlice the first one of its EndpointSlices; zero for never.
	Service, EndpointSlice time.Time
	// Triggers are the times of the changes of the Service or its pods that caused changes
	// of EndpointSlices (endpoints.kubernetes.io/last-change-trigger-time), by family: IPv4,
	// IPv6. They are a hundred at most, and none is from before the tracker was made.
	Triggers [2][]time.Time
}

// Heard yields the changes of the Services that differ between s and the Snapshot that
// Next was called with; nothing if that was the zero one. It is for one caller of Next: several would take
// changes away from each other. A further Runner is a Second one.
func (s Snapshot) Heard() iter.Seq[Heard] {
	return func(yield func(Heard) bool) {
		for i := range s.heard {
			if !yield(s.heard[i].Heard) {
				return
			}
		}
	}
}

// maxTriggers is how many triggers of one Service are kept at most, maxHeard how many Services.
const (
	maxTriggers = 100
	maxHeard    = 1 << 16
)

// heard is a [Heard] with the generation of the first snapshot that has the change.
type heard struct {
	Heard
	generation uint64
}

// changeLog has the times of changes, for metrics of latency.
type changeLog struct {
	start time.Time
	// synced says that Synced was called, recording that there was a first snapshot.
	// Objects that arrived before the first snapshot are no changes.
	synced, recording bool
	// hasNode says that the Node object was received.
	hasNode bool
	// total counts the objects that the tracker received, pending those since Next last asked for a
	// snapshot; first Services, then EndpointSlices.
	total, pending [2]uint64
	// open are the changes since the last snapshot.
	open map[types.NamespacedName]Heard
	// published are those in snapshots that no call of Next has named yet, in the order of
	// generations. Snapshots refer to parts of it, which do not change.
	published []heard
	// eligible says that load balancers may send new connections to the node. It needs no lock.
	eligible atomic.Bool
}

// service records that a Service has changed.
func (h *changeLog) service(name types.NamespacedName) {
	h.total[0]++
	h.pending[0]++
	if x, ok := h.get(name); ok && x.Service.IsZero() {
		x.Service = time.Now()
		h.open[name] = x
	}
}

// slice records that an EndpointSlice has changed; nil for a deleted one, whose Service
// is not known.
func (h *changeLog) slice(s *discoveryv1.EndpointSlice) {
	h.total[1]++
	h.pending[1]++
	if s == nil {
		return
	}
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
	x, ok := h.get(name)
	if !ok {
		return
	}
	if x.EndpointSlice.IsZero() {
		x.EndpointSlice = time.Now()
	}
	if text := s.Annotations[v1.EndpointsLastChangeTriggerTime]; text != "" {
		at, err := time.Parse(time.RFC3339Nano, text)
		if err == nil && !at.Before(h.start) && len(x.Triggers[0])+len(x.Triggers[1]) < maxTriggers {
			of := &x.Triggers[0]
			if s.AddressType == discoveryv1.AddressTypeIPv6 {
				of = &x.Triggers[1]
			}
			*of = append(*of, at)
		}
	}
	h.open[name] = x
}

// get returns the record of a Service; ok is false if the change must not be recorded.
func (h *changeLog) get(name types.NamespacedName) (x Heard, ok bool) {
	if !h.recording || name.Name == "" {
		return Heard{}, false
	}
	if x, ok = h.open[name]; ok {
		return x, true
	}
	return Heard{Name: name}, len(h.open) < maxHeard
}

// publish records that a Service differs in a generation from the one before.
func (h *changeLog) publish(name types.NamespacedName, generation uint64) {
	x, ok := h.open[name]
	if !ok {
		return
	}
	delete(h.open, name)
	if len(h.published) >= maxHeard {
		h.published = h.published[maxHeard/2:]
	}
	if len(h.published) == cap(h.published) {
		h.published = slices.Grow(h.published, max(16, len(h.published)))
	}
	h.published = append(h.published, heard{x, generation})
}

// done removes the changes that no snapshot has: they made no difference.
func (h *changeLog) done() {
	h.recording = true
	if len(h.open) > 1024 {
		h.open = map[types.NamespacedName]Heard{} // clearing a map takes time in its capacity, also if it is empty
	}
	clear(h.open)
}

// take returns the changes that are in the newest snapshot and were not in after, and
// removes the others. None is pending any more.
func (h *changeLog) take(after Snapshot) []heard {
	h.pending = [2]uint64{}
	if after.IsZero() {
		return nil
	}
	known := 0
	for known < len(h.published) && h.published[known].generation <= after.generation {
		known++
	}
	h.published = h.published[known:]
	if known > 1024 {
		h.published = slices.Clone(h.published) // lets the removed ones be collected
	}
	return slices.Clip(h.published)
}

// ChangeCounts returns how many changes of Services, and how many of EndpointSlices, the tracker
// has received, and how many of them since Next last asked for a snapshot.
func (t *tracker) ChangeCounts() (total, pending [2]uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changeLog.total, t.changeLog.pending
}

// NodeEligible reports whether load balancers may send new connections to the node: they must
// not while its Node object is unknown, is being deleted, or has the taint
// ToBeDeletedByClusterAutoscaler. A tracker without NodeName returns true.
func (t *tracker) NodeEligible() bool { return t.options.NodeName == "" || t.changeLog.eligible.Load() }

func isEligible(n *v1.Node) bool {
	return n != nil && n.DeletionTimestamp.IsZero() && !slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool {
		return t.Key == "ToBeDeletedByClusterAutoscaler"
	})
}
