package prommetrics

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// Changes before the first snapshot are part of it, and not timed; changes of other objects,
// such as the Node, are not timed either.
func TestFirstSnapshotIsNotTimed(t *testing.T) {
	m, _ := newMetrics(t, "")
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	tracker.Synced()
	tracker.UpdateService(service("a", "10.96.0.1"))
	take := func(after proxy.Snapshot) proxy.Snapshot {
		s := snapshots.Next(t, tracker, after)
		m.started(proxy.Sync{Snapshot: s, Start: time.Now()})
		return s
	}
	last := take(proxy.Snapshot{})
	tracker.UpdateNode(objects.Node("node-1", "", "192.0.2.1"))
	last = take(last)
	if n := len(m.changes); n != 0 {
		t.Errorf("got %d changes, want none", n)
	}
	tracker.UpdateService(service("a", "10.96.0.2"))
	take(last)
	if n := len(m.changes); n != 1 {
		t.Errorf("got %d changes, want the one after the first snapshot", n)
	}
}

// A failed change and the next one count as one, from when each kind was received first.
func TestChangesThatFollowEachOther(t *testing.T) {
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	c := changes{key("a"): {received: [kinds]time.Time{serviceKind: at(1)}}}
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{})
	tracker.Synced()
	tracker.UpdateService(service("a", "10.96.0.1"))
	last := snapshots.Next(t, tracker, proxy.Snapshot{})
	var begin [3]time.Time
	for i := range begin {
		begin[i] = time.Now()
		tracker.UpdateService(service("a", fmt.Sprintf("10.96.0.%d", 2+i)))
		tracker.UpdateEndpointSlice(slice("a", fmt.Sprintf("10.0.0.%d", 2+i), time.Now()))
		next := snapshots.Next(t, tracker, last)
		c.take(next, time.Now())
		last = next
	}
	x := c[key("a")]
	if h := x.received; !h[serviceKind].Equal(at(1)) || h[sliceKind].Before(begin[0]) || h[sliceKind].After(begin[1]) || len(x.triggers[0]) != 3 {
		t.Errorf("got received at %v and triggers %v, want %v, soon after %v, and 3 triggers", h, x.triggers, at(1), begin[0])
	}
}

// A refused service port of a Service without a timed change adds none.
func TestRefusedPortsWithoutChanges(t *testing.T) {
	c := changes{key("a"): {}}
	name := func(of string) proxy.ServicePortName { return proxy.ServicePortName{NamespacedName: key(of)} }
	done := 0
	left := c.finish(proxy.PortErrors{name("a"): io.ErrNoProgress, name("b"): io.ErrNoProgress}, func(*change) { done++ })
	if done != 0 || len(left) != 1 || left[key("a")] == nil {
		t.Errorf("got %d finished and %v left, want none and a", done, left)
	}
}

// Only EndpointSlices with a trigger time have the stage notice.
func TestNoticeIsOfSlices(t *testing.T) {
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	m, r := newMetrics(t, "")
	m.observeChange(&change{received: [kinds]time.Time{sliceKind: at(10)}, taken: at(11)}, at(13))
	wantSamples(t, r, "without a trigger", stagePattern, stages("EndpointSlice", 1, "2", "", "1", "3")...)
	m, r = newMetrics(t, "")
	m.observeChange(&change{received: [kinds]time.Time{at(9), at(10)}, taken: at(11), triggers: [2][]time.Time{{at(5), at(6)}}}, at(13))
	wantSamples(t, r, "both kinds", stagePattern, append(stages("EndpointSlice", 1, "2", "5", "1", "8"), stages("Service", 1, "2", "", "2", "4")...)...)
}
