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

// ChangeTimes are the times of the changes of one Service that made a difference for this node.
type ChangeTimes struct {
	// Name is the Service.
	Name types.NamespacedName
	// Service is when the tracker received the first change of the Service itself,
	// EndpointSlice the first one of its EndpointSlices; zero for never.
	Service, EndpointSlice time.Time
	// TriggersIPv4 and TriggersIPv6 are the times of the changes of the Service or its pods that
	// caused changes of EndpointSlices (endpoints.kubernetes.io/last-change-trigger-time), by
	// family. They are a hundred at most, and none is from before the tracker was made.
	TriggersIPv4, TriggersIPv6 []time.Time
}

// ChangeCounts are numbers of changes of API objects, deletions included.
type ChangeCounts struct {
	// Services and EndpointSlices count the changes of these kinds.
	Services, EndpointSlices uint64
}

// received is what a tracker had received when it returned a snapshot.
type received struct {
	log *changeLog // of the tracker
	// counts are those that the snapshot takes into account. They grow while it is the newest one, by
	// changes that made no difference; the tracker's lock guards them.
	counts *ChangeCounts
	// recorded is the number of ChangeTimes so far. times are the last of them: those since the
	// snapshot that Next was called with, except for the first dropped ones.
	recorded, dropped uint64
	times             []ChangeTimes
}

// ChangeTimes yields the times of the changes between s and the Snapshot that Next was called
// with; nothing if that was the zero one. A Service that changed in several snapshots comes
// once for each. They are to be read only: all consumers have the same. A [Runner] passes one
// Snapshot on several times, at retries and resyncs: an observer that counts must count it once.
func (s Snapshot) ChangeTimes() iter.Seq[ChangeTimes] {
	if s.received == nil {
		return slices.Values[[]ChangeTimes](nil)
	}
	return slices.Values(s.received.times)
}

// DroppedChangeTimes returns how many ChangeTimes are missing. The tracker keeps the times of
// the newest snapshot, and some thousands before: a consumer that lags behind by more
// gets only these.
func (s Snapshot) DroppedChangeTimes() uint64 {
	if s.received == nil {
		return 0
	}
	return s.received.dropped
}

const (
	// maxTriggers is how many triggers of one Service are kept at most.
	maxTriggers = 100
	// maxOpen is how many Services are recorded at most between two snapshots.
	maxOpen = 1 << 16
	// maxEarlier is how many ChangeTimes are kept of snapshots before the newest.
	maxEarlier = 1 << 13
)

// changeLog has the times of changes, for metrics of latency.
type changeLog struct {
	start time.Time
	// synced says that Synced was called, recording that there was a first snapshot.
	// Objects that arrived before the first snapshot are no changes.
	synced, recording bool
	// hasNode says that the Node object was received.
	hasNode bool
	// received counts the objects that the tracker received, published those that the newest
	// snapshot takes into account, which has them too.
	received  ChangeCounts
	published *ChangeCounts
	// open are the changes since the last snapshot.
	open map[types.NamespacedName]ChangeTimes
	// times are the last ones of all that were recorded, in the order of snapshots. Snapshots
	// refer to parts of it, which do not change.
	times    []ChangeTimes
	recorded uint64
	// eligible says that load balancers may send new connections to the node. It needs no lock.
	eligible atomic.Bool
}

// service records that a Service has changed.
func (l *changeLog) service(name types.NamespacedName) {
	l.received.Services++
	if x, ok := l.get(name); ok && x.Service.IsZero() {
		x.Service = time.Now()
		l.open[name] = x
	}
}

// slice records that an EndpointSlice has changed; nil for a deleted one, whose Service
// is not known.
func (l *changeLog) slice(s *discoveryv1.EndpointSlice) {
	l.received.EndpointSlices++
	if s == nil {
		return
	}
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
	x, ok := l.get(name)
	if !ok {
		return
	}
	if x.EndpointSlice.IsZero() {
		x.EndpointSlice = time.Now()
	}
	if text := s.Annotations[v1.EndpointsLastChangeTriggerTime]; text != "" {
		at, err := time.Parse(time.RFC3339Nano, text)
		if err == nil && !at.Before(l.start) && len(x.TriggersIPv4)+len(x.TriggersIPv6) < maxTriggers {
			of := &x.TriggersIPv4
			if s.AddressType == discoveryv1.AddressTypeIPv6 {
				of = &x.TriggersIPv6
			}
			*of = append(*of, at)
		}
	}
	l.open[name] = x
}

// get returns the record of a Service; ok is false if the change must not be recorded.
func (l *changeLog) get(name types.NamespacedName) (x ChangeTimes, ok bool) {
	if !l.recording || name.Name == "" {
		return ChangeTimes{}, false
	}
	if x, ok = l.open[name]; ok {
		return x, true
	}
	return ChangeTimes{Name: name}, len(l.open) < maxOpen
}

// publish records that a Service differs in the next snapshot.
func (l *changeLog) publish(name types.NamespacedName) {
	x, ok := l.open[name]
	if !ok {
		return
	}
	delete(l.open, name)
	x.TriggersIPv4, x.TriggersIPv6 = slices.Clip(x.TriggersIPv4), slices.Clip(x.TriggersIPv6) // for all consumers
	if len(l.times) == cap(l.times) {
		l.times = slices.Grow(l.times, max(16, len(l.times)))
	}
	l.times = append(l.times, x)
	l.recorded++
}

// done ends the making of a snapshot, before which there were earlier ChangeTimes. It removes the
// changes that the snapshot does not have: they made no difference.
func (l *changeLog) done(earlier uint64, isNew bool) {
	l.recording = true
	if isNew {
		l.published = new(ChangeCounts)
	}
	*l.published = l.received
	if len(l.open) > 1024 {
		l.open = map[types.NamespacedName]ChangeTimes{} // clearing a map takes time in its capacity, also if it is empty
	}
	clear(l.open)
	added := l.recorded - earlier
	if keep := added + maxEarlier; added > 0 && uint64(len(l.times)) >= keep+maxEarlier {
		l.times = slices.Clone(l.times[uint64(len(l.times))-keep:]) // lets the others be collected
	}
}

// since returns what was received until now, with the ChangeTimes since a snapshot.
func (l *changeLog) since(after Snapshot) *received {
	r := &received{log: l, counts: l.published, recorded: l.recorded}
	if after.received == nil || after.received.log != l {
		return r // The caller has no snapshot, or not one of this tracker.
	}
	missed := l.recorded - after.received.recorded
	kept := min(missed, uint64(len(l.times)))
	r.dropped = missed - kept
	r.times = slices.Clip(l.times[uint64(len(l.times))-kept:])
	return r
}

// Received returns how many changes the tracker has received.
func (t *ServiceChangeTracker) Received() ChangeCounts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changeLog.received
}

// Pending returns how many changes the tracker has received that s, a snapshot of this tracker, does
// not take into account. A change that makes no difference is pending until a call of Next has found
// that s is still the newest snapshot.
func (t *ServiceChangeTracker) Pending(s Snapshot) ChangeCounts {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.changeLog.received
	if s.received == nil || s.received.log != &t.changeLog {
		return all
	}
	known := s.received.counts
	return ChangeCounts{all.Services - known.Services, all.EndpointSlices - known.EndpointSlices}
}
