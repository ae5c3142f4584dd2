package proxy

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/testing/objects"
)

// line is a line of the log, and when it was written.
type line struct {
	At   time.Duration
	Text string
}

// runLacking runs a Runner on a tracker, and returns what it has logged within an hour while test runs.
func runLacking(t *testing.T, o TrackerOptions, test func(*tracker, *fakeBackend)) (log []line) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		tr := NewServiceChangeTracker(o).(*tracker) //nolint:errcheck // nothing else is made
		b := &fakeBackend{start: start}
		r := &Runner{Source: tr, Backend: b, ResyncInterval: 30 * time.Second, Logger: funcr.New(func(_, text string) {
			log = append(log, line{time.Since(start), text})
		}, funcr.Options{})}
		stop := goRun(t, r)
		synctest.Wait()
		test(tr, b)
		sleepAndWait(time.Hour - time.Since(start))
		stop()
	})
	return log
}

func wantLog(t *testing.T, got []line, want ...line) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

// The Runner logs that the tracker is never synced, with what it has received, and when that is over.
func TestLogsThatTheTrackerIsNotSynced(t *testing.T) {
	got := runLacking(t, TrackerOptions{NodeName: "here"}, func(tr *tracker, b *fakeBackend) {
		tr.UpdateService(apiService("a", "10.96.0.1"))
		sleepAndWait(20 * time.Second)
		tr.UpdateNode(objects.Node("here", "", "192.0.2.1"))
		sleepAndWait(20 * time.Second)
		if calls := b.taken(); calls != nil {
			t.Errorf("calls of Apply before Synced: got %v, want none", calls)
		}
		tr.Synced()
	})
	waiting := func(received, waited string) string {
		return `"level"=0 "msg"="waiting" "for"="first objects" "detail"="Synced was not called; received: Services 1, EndpointSlices 0, ` +
			`Node \"here\" ` + received + `" "waited"="` + waited + `"`
	}
	wantLog(t, got,
		line{5 * time.Second, waiting("false", "5s")}, line{15 * time.Second, waiting("false", "15s")}, line{35 * time.Second, waiting("true", "35s")},
		line{40 * time.Second, `"level"=0 "msg"="no longer waiting" "for"="first objects" "waited"="40s"`},
	)
}

// The Runner logs that there is no Node of the configured name, at growing intervals.
func TestLogsThatThereIsNoNode(t *testing.T) {
	got := runLacking(t, TrackerOptions{NodeName: "nobody"}, func(tr *tracker, b *fakeBackend) {
		tr.UpdateNode(objects.Node("other", "", "192.0.2.1"))
		tr.Synced()
		sleepAndWait(40 * time.Minute)
		if calls := b.taken(); len(calls) == 0 {
			t.Error("calls of Apply without a Node: got none, want some")
		}
		tr.UpdateNode(objects.Node("nobody", "", "192.0.2.1"))
	})
	missing := func(waited time.Duration) line {
		return line{waited, `"level"=0 "msg"="waiting" "for"="Node" "detail"="the Node \"nobody\" was not found, so node ports have no addresses, ` +
			`and the zone is unknown; check the configured node name" "waited"="` + waited.String() + `"`}
	}
	var want []line
	for at, pause := firstLack, firstLack; at < 40*time.Minute; at += pause {
		want = append(want, missing(at))
		pause = min(2*pause, maxLack)
	}
	wantLog(t, got, append(want, line{40 * time.Minute, `"level"=0 "msg"="no longer waiting" "for"="Node" "waited"="40m0s"`})...)
}

// Nothing is logged if the tracker is synced soon, and knows addresses of the node or needs none.
func TestLogsNoLackWithoutNeed(t *testing.T) {
	soon := func(tr *tracker, _ *fakeBackend) {
		sleepAndWait(firstLack - time.Millisecond)
		tr.Synced()
	}
	wantLog(t, runLacking(t, TrackerOptions{}, soon))
	wantLog(t, runLacking(t, TrackerOptions{NodeName: "here", NodeAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, soon))
}

// A Node without addresses is not the same as none.
func TestLackOfAddresses(t *testing.T) {
	tr := NewServiceChangeTracker(TrackerOptions{NodeName: "here"}).(*tracker) //nolint:errcheck // nothing else is made
	tr.Synced()
	tr.UpdateNode(objects.Node("here", ""))
	if _, got := tr.Lack(); got != `the Node "here" has no address, so node ports have none; check its status.addresses` {
		t.Errorf("got %q, want that the Node has no address", got)
	}
	tr.UpdateNode(objects.Node("here", "", "192.0.2.1"))
	if what, detail := tr.Lack(); what != "" || detail != "" {
		t.Errorf("with an address: got %q, %q, want nothing", what, detail)
	}
	unnamed := NewServiceChangeTracker(TrackerOptions{}).(*tracker) //nolint:errcheck // nothing else is made
	if what, got := unnamed.Lack(); what == "" || got != "Synced was not called; received: Services 0, EndpointSlices 0" {
		t.Errorf("without a node name: got %q, %q, want only Services and EndpointSlices", what, got)
	}
}
