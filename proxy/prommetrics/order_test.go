package prommetrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/health"
)

// flows is a proxy.FlowCleaner that returns the error that a test sets.
type flows struct {
	mu  sync.Mutex
	err error
}

func (f *flows) RemoveStale(context.Context, proxy.Snapshot, bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *flows) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (*flows) RetryDue() bool                    { return false }
func (*flows) AddFrontends([]*proxy.ServicePort) {}

// history runs a proxy with observers in an order through a history of changes, failures of the
// backend and of the flows, and repairs. It returns all responses and scrapes, and all syncs.
func history(t *testing.T, order [3]int) (seen []string) {
	synctest.Test(t, func(t *testing.T) {
		metrics, registry := newMetrics(t, "nftables")
		tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
		server, err := health.New(health.Options{NodeEligible: tracker.NodeEligible})
		testenv.NoError(t, err)
		var syncs []string
		all := [3]proxy.Observer{metrics.Observer(tracker), server.Observer(), {
			Synced: func(s proxy.Sync) {
				syncs = append(syncs, fmt.Sprint(s.Applied.Len(), s.Full, s.Changed, s.Operations, s.Err))
			},
			Verified: func(s proxy.Snapshot) { syncs = append(syncs, fmt.Sprint("verified ", s.Len())) },
		}}
		b, f := &backend{takes: time.Second}, &flows{}
		runner := &proxy.Runner{Source: tracker, Backend: b, FlowCleaner: f, ResyncInterval: time.Minute}
		for _, i := range order {
			runner.Observers = append(runner.Observers, all[i])
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- runner.Run(ctx) }()
		observe := func(after time.Duration) {
			time.Sleep(after)
			synctest.Wait()
			for _, path := range []string{"/healthz", "/livez"} {
				w := httptest.NewRecorder()
				server.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
				seen = append(seen, w.Body.String())
			}
			for _, line := range scrape(t, registry) {
				if !strings.HasPrefix(line, "#") {
					seen = append(seen, line)
				}
			}
		}
		tracker.UpdateService(service("a", "10.96.0.1"))
		observe(time.Second)
		tracker.Synced()
		synctest.Wait() // The content of the next Apply must not depend on timing.
		tracker.UpdateNode(objects.Node("node-1", ""))
		observe(500 * time.Millisecond)
		portA := proxy.ServicePortName{NamespacedName: key("a"), Protocol: v1.ProtocolTCP, Family: v1.IPv4Protocol}
		for i, err := range []error{nil, proxy.PortErrors{portA: errors.New("refused")}, proxy.ErrDataplaneLost, errors.New("broken")} {
			b.set(func(b *backend) { b.err, b.drift = err, uint64(i) })
			tracker.UpdateService(service("a", fmt.Sprintf("10.96.0.%d", 2+i)))
			synctest.Wait()
			tracker.UpdateEndpointSlice(slice("a", fmt.Sprintf("10.0.0.%d", 2+i), time.Now()))
			observe(100 * time.Second)
			observe(100 * time.Second)
		}
		b.set(func(b *backend) { b.err = nil })
		f.fail(errors.New("flows stay"))
		observe(200 * time.Second)
		f.fail(nil)
		observe(200 * time.Second)
		seen = append(seen, syncs...)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return seen
}

// Responses and metrics do not depend on the order of observers.
func TestObserversInAnyOrder(t *testing.T) {
	want := history(t, [3]int{0, 1, 2})
	for _, needle := range []string{`"healthy":true`, `"healthy":false`, `"nodeEligible":true`, `vipkit_syncs_total{result="partial"} 0`,
		`vipkit_unprogrammed_service_ports 1`, "flows stay", "verified 1"} {
		if !strings.Contains(strings.Join(want, "\n"), needle) {
			t.Errorf("history: got no %s, want one in which it happens", needle)
		}
	}
	for _, order := range [][3]int{{0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		if diff := cmp.Diff(want, history(t, order)); diff != "" {
			t.Errorf("observers in the order %v: responses and metrics (-first order +this order):\n%.2000s", order, diff)
		}
	}
}

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
