package proxy

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// line is a line of the log, and when it was written.
type line struct {
	At   time.Duration
	Text string
}

// logMissing returns what LogMissing logs within an hour while test runs.
func logMissing(t *testing.T, o TrackerOptions, test func(*ServiceChangeTracker)) (log []line) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		tr := NewServiceChangeTracker(o)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		go tr.LogMissing(ctx, funcr.New(func(_, text string) {
			log = append(log, line{time.Since(start), text})
		}, funcr.Options{}))
		synctest.Wait()
		test(tr)
		<-ctx.Done()
		synctest.Wait()
	})
	return log
}

func wantLog(t *testing.T, got []line, want ...line) {
	t.Helper()
	testenv.Same(t, want, got, "log")
}

// LogMissing logs that the tracker is never synced, with what it has received, and when that is over.
func TestLogsThatTheTrackerIsNotSynced(t *testing.T) {
	got := logMissing(t, TrackerOptions{NodeName: "here"}, func(tr *ServiceChangeTracker) {
		tr.UpdateService(apiService("a", "10.96.0.1"))
		sleepAndWait(20 * time.Second)
		tr.UpdateNode(objects.Node("here", "", "192.0.2.1"))
		sleepAndWait(19 * time.Second)
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

// LogMissing logs that there is no Node of the configured name, at growing intervals.
func TestLogsThatThereIsNoNode(t *testing.T) {
	got := logMissing(t, TrackerOptions{NodeName: "nobody"}, func(tr *ServiceChangeTracker) {
		tr.UpdateNode(objects.Node("other", "", "192.0.2.1"))
		tr.Synced()
		sleepAndWait(40*time.Minute + time.Second)
		tr.UpdateNode(objects.Node("nobody", "", "192.0.2.1"))
	})
	missing := func(waited time.Duration) line {
		return line{missingPeriod + waited, `"level"=0 "msg"="waiting" "for"="Node" "detail"="the Node \"nobody\" was not found, so node ports have no addresses, ` +
			`and the zone is unknown; check the configured node name" "waited"="` + waited.String() + `"`}
	}
	var want []line
	for at, pause := missingPeriod, missingPeriod; at < 40*time.Minute; at += pause {
		want = append(want, missing(at))
		pause = min(2*pause, maxMissingPause)
	}
	wantLog(t, got, append(want, line{missingPeriod + 40*time.Minute, `"level"=0 "msg"="no longer waiting" "for"="Node" "waited"="40m0s"`})...)
}

// Nothing is logged if the tracker is synced soon, and knows addresses of the node or needs none.
func TestLogsNothingWithoutNeed(t *testing.T) {
	soon := func(tr *ServiceChangeTracker) {
		sleepAndWait(missingPeriod - time.Millisecond)
		tr.Synced()
	}
	wantLog(t, logMissing(t, TrackerOptions{}, soon))
	wantLog(t, logMissing(t, TrackerOptions{NodeName: "here", NodeAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, soon))
}

// A Node without addresses is not the same as none.
func TestMissingAddresses(t *testing.T) {
	tr := NewServiceChangeTracker(TrackerOptions{NodeName: "here"})
	tr.Synced()
	tr.UpdateNode(objects.Node("here", ""))
	if _, got := tr.Missing(); got != `the Node "here" has no address, so node ports have none; check its status.addresses` {
		t.Errorf("got %q, want that the Node has no address", got)
	}
	tr.UpdateNode(objects.Node("here", "", "192.0.2.1"))
	if what, detail := tr.Missing(); what != "" || detail != "" {
		t.Errorf("with an address: got %q, %q, want nothing", what, detail)
	}
	unnamed := NewServiceChangeTracker(TrackerOptions{})
	if what, got := unnamed.Missing(); what == "" || got != "Synced was not called; received: Services 0, EndpointSlices 0" {
		t.Errorf("without a node name: got %q, %q, want only Services and EndpointSlices", what, got)
	}
}
