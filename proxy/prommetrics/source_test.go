package prommetrics

import (
	"context"
	"errors"
	"io"
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
)

// noting is a source that has nothing to give at once, and notes with what it was asked
// to wait.
type noting struct {
	waits []context.Context
	err   error
}

func (n *noting) Next(ctx context.Context, _ proxy.Snapshot) (proxy.Snapshot, error) {
	switch {
	case n.err != nil:
		return proxy.Snapshot{}, n.err
	case ctx.Err() != nil:
		return proxy.Snapshot{}, ctx.Err()
	}
	n.waits = append(n.waits, ctx)
	return proxy.NewSnapshot(&proxy.Node{Name: "node-1"}), nil
}

// Each wait is given up once it is over: whoever serves for years must not collect
// them.
func TestWaitsAreGivenUp(t *testing.T) {
	m, _ := newMetrics(t, "")
	inner := &noting{}
	s := &source{inner: inner, metrics: m}
	for range 3 {
		if _, err := s.Next(t.Context(), proxy.Snapshot{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(inner.waits) != 3 {
		t.Fatalf("it was asked to wait %d times, want 3", len(inner.waits))
	}
	for i, want := range []bool{true, true, false} {
		if got := inner.waits[i].Err() != nil; got != want {
			t.Errorf("wait %d is over: %v, want %v", i, got, want)
		}
	}
}

// What a source says that has failed is what the Runner hears.
func TestFailingSource(t *testing.T) {
	m, _ := newMetrics(t, "")
	s := &source{inner: &noting{err: io.ErrUnexpectedEOF}, metrics: m}
	if _, err := s.Next(t.Context(), proxy.Snapshot{}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error %v, want %v", err, io.ErrUnexpectedEOF)
	}
}

// dying is a source that has nothing to give, and fails when its time to wait is over.
type dying struct{ end context.CancelFunc }

func (d dying) Next(ctx context.Context, _ proxy.Snapshot) (proxy.Snapshot, error) {
	if ctx.Err() != nil {
		return proxy.Snapshot{}, ctx.Err()
	}
	d.end()
	return proxy.Snapshot{}, io.ErrUnexpectedEOF
}

// It is so also where nobody waits any more.
func TestSourceFailsAtTheEnd(t *testing.T) {
	m, _ := newMetrics(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := &source{inner: dying{cancel}, metrics: m}
	if _, err := s.Next(ctx, proxy.Snapshot{}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error %v, want %v", err, io.ErrUnexpectedEOF)
	}
}

// Every change is counted; of those that no snapshot will tell of, nothing is kept.
func TestWhatIsKept(t *testing.T) {
	m, r := newMetrics(t, "")
	tracker := m.Tracker(proxy.NewServiceChangeTracker(proxy.TrackerOptions{}))
	tracker.UpdateService(service("a", "10.96.0.1"))
	tracker.UpdateEndpointSlice(slice("a", "10.0.0.1", time.Time{}))
	if n := len(m.changes.heard); n != 0 {
		t.Errorf("%d changes are kept of the initial state, want none", n)
	}
	tracker.Synced()
	tracker.UpdateService(nil)
	tracker.UpdateEndpointSlice(nil)
	tracker.DeleteEndpointSlice(types.NamespacedName{Namespace: "ns", Name: "a-1"})
	if n := len(m.changes.heard); n != 0 {
		t.Errorf("%d changes are kept of no Service, want none", n)
	}
	tracker.UpdateService(service("a", "10.96.0.2"))
	tracker.DeleteService(key("a"))
	if n := len(m.changes.heard); n != 1 {
		t.Errorf("%d changes are kept, want that of the one Service", n)
	}
	wantSamples(t, r, "changes", "changes_(total|pending)",
		"kubeproxy_sync_proxy_rules_endpoint_changes_pending 2", "kubeproxy_sync_proxy_rules_endpoint_changes_total 2",
		"kubeproxy_sync_proxy_rules_service_changes_pending 3", "kubeproxy_sync_proxy_rules_service_changes_total 3")
}

// What changes before the first snapshot is taken up is a part of it, and not timed.
func TestFirstSnapshotIsNotTimed(t *testing.T) {
	m, _ := newMetrics(t, "")
	inner := proxy.NewServiceChangeTracker(proxy.TrackerOptions{})
	tracker := m.Tracker(inner)
	tracker.Synced()
	tracker.UpdateService(service("a", "10.96.0.1"))
	s := &source{inner: inner, metrics: m}
	first, err := s.Next(t.Context(), proxy.Snapshot{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(m.changes.taken) + len(m.changes.heard); n != 0 {
		t.Errorf("%d changes are followed, want none", n)
	}
	tracker.UpdateService(service("a", "10.96.0.2"))
	if _, err := s.Next(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if n := len(m.changes.taken); n != 1 {
		t.Errorf("%d changes are followed, want the one that came after", n)
	}
}

// A failed change and one that follows it are one, from when each kind was heard first.
func TestChangesThatFollowEachOther(t *testing.T) {
	c := newChanges(time.Time{})
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	c.follow(key("a"), &change{heard: [kinds]time.Time{serviceKind: at(1)}})
	c.follow(key("a"), &change{heard: [kinds]time.Time{at(2), at(3)}, triggers: []trigger{{at: at(2)}}})
	c.follow(key("a"), &change{heard: [kinds]time.Time{at(4), at(5)}, triggers: []trigger{{at: at(4)}}})
	got := c.taken[key("a")]
	if want := [kinds]time.Time{at(1), at(3)}; got.heard != want || len(got.triggers) != 2 {
		t.Errorf("heard at %v with %d triggers, want %v and 2", got.heard, len(got.triggers), want)
	}
}

// late is a source that has nothing, then something, and then something newer.
type late struct{ asked int }

func (l *late) Next(ctx context.Context, _ proxy.Snapshot) (proxy.Snapshot, error) {
	if l.asked++; l.asked == 1 {
		return proxy.Snapshot{}, ctx.Err()
	}
	return proxy.NewSnapshot(&proxy.Node{Name: strconv.Itoa(l.asked)}), nil
}

// What is taken up holds all that has been heard until then.
func TestNewestIsTaken(t *testing.T) {
	m, _ := newMetrics(t, "")
	got, err := (&source{inner: &late{}, metrics: m}).Next(t.Context(), proxy.Snapshot{})
	if err != nil || got.Node().Name != "3" {
		t.Errorf("snapshot %v, error %v, want the third", got.Node(), err)
	}
}

// What changes although nobody has heard of it, as with the Node, is not timed.
func TestChangesThatNobodyHeardOf(t *testing.T) {
	m, _ := newMetrics(t, "")
	port := func(name string, zone bool) *proxy.ServicePort {
		return &proxy.ServicePort{Name: proxy.ServicePortName{NamespacedName: key(name)}, ExternalLocal: zone}
	}
	m.changes.synced = true
	m.changes.hear(serviceKind, key("b"))()
	m.changes.take(proxy.NewSnapshot(&proxy.Node{}, port("a", false)), proxy.NewSnapshot(&proxy.Node{}, port("a", true), port("b", false)), time.Now())
	if n := len(m.changes.taken); n != 1 || m.changes.taken[key("b")] == nil {
		t.Errorf("%d changes are followed, want the one that was heard of", n)
	}
}

// A port that fails, and of whose Service nothing is timed, leaves nothing to be timed.
func TestFailuresThatNobodyHeardOf(t *testing.T) {
	c := newChanges(time.Time{})
	c.taken[key("a")] = &change{}
	name := func(of string) proxy.ServicePortName { return proxy.ServicePortName{NamespacedName: key(of)} }
	done := c.finish(proxy.PortErrors{name("a"): io.ErrNoProgress, name("b"): io.ErrNoProgress})
	if len(done) != 0 || len(c.taken) != 1 || c.taken[key("a")] == nil {
		t.Errorf("finished %v, still followed %v; want none, and a", done, c.taken)
	}
}

// Only slices tell when their pods changed, and only if they do is there a time to
// notice it.
func TestNoticeIsOfSlices(t *testing.T) {
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	m, r := newMetrics(t, "")
	m.observeChange(&change{heard: [kinds]time.Time{sliceKind: at(10)}, taken: at(11)}, at(13))
	wantSamples(t, r, "without a trigger", stagePattern, stages("EndpointSlice", 1, "2", "", "1", "3")...)
	m, r = newMetrics(t, "")
	m.observeChange(&change{heard: [kinds]time.Time{at(9), at(10)}, taken: at(11), triggers: []trigger{{at(5), v1.IPv4Protocol}, {at(6), v1.IPv4Protocol}}}, at(13))
	wantSamples(t, r, "both kinds", stagePattern, append(stages("EndpointSlice", 1, "2", "5", "1", "8"), stages("Service", 1, "2", "", "2", "4")...)...)
}
