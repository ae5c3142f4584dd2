package main

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/manifest"
)

// logged returns the lines that f logs at a verbosity, without their time.
func logged(verbosity int, f func(*journal)) []string {
	var out strings.Builder
	f(newJournal(logr.FromSlogHandler(slog.NewTextHandler(&out, &slog.HandlerOptions{
		Level: slog.Level(-verbosity),
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))))
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

func TestManifestProblemsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	bad := func(line, item int, reason string) error {
		return &manifest.DocumentError{File: "web.yaml", Line: line, Item: item, Err: errors.New(reason)}
	}
	got := logged(0, func(j *journal) {
		j.reported(errors.Join(errors.New("no folder"), bad(3, -1, "no name")))
		j.reported(errors.Join(bad(3, -1, "no name"), bad(9, 1, "no kind")))
		j.reported(nil)
		j.reported(bad(3, -1, "no name"))
	})
	want := []string{
		`level=ERROR msg="manifest problem" err="no folder"`,
		`level=ERROR msg="manifest problem" err="no name" file=web.yaml line=3`,
		`level=INFO msg="manifest problem resolved" was="no folder"`,
		`level=ERROR msg="manifest problem" err="no kind" file=web.yaml line=9 item=1`,
		`level=INFO msg="manifest problem resolved" file=web.yaml line=3 was="no name"`,
		`level=INFO msg="manifest problem resolved" file=web.yaml line=9 item=1 was="no kind"`,
		`level=ERROR msg="manifest problem" err="no name" file=web.yaml line=3`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("log lines (-want +got):\n%s", diff)
	}
}

// TestLimitsAreLoggedOnce checks that a limit is logged once, and not as an object problem.
func TestLimitsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	limit := &proxy.Problem{
		Kind: "Service", NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"},
		Field: "spec.sessionAffinity", Err: errors.New("100 clients are remembered"),
	}
	held := proxy.NewSnapshot(&proxy.Node{})
	got := logged(0, func(j *journal) {
		j.synced(proxy.Sync{Snapshot: held, Applied: held, Limits: []*proxy.Problem{limit, limit}}) // of two ports
		j.synced(proxy.Sync{Snapshot: held, Applied: held, Limits: []*proxy.Problem{limit}})
		j.synced(proxy.Sync{Snapshot: held}) // the content of the dataplane is unknown
		j.synced(proxy.Sync{Snapshot: held, Applied: held})
	})
	const sync = `level=INFO msg=sync full=false changed=0 operations=0 took=0s ports=0`
	want := []string{
		`level=ERROR msg="served with limits" err="100 clients are remembered" kind=Service object=default/web field=spec.sessionAffinity`, sync, sync, sync,
		`level=INFO msg="served with limits resolved" kind=Service object=default/web field=spec.sessionAffinity was="100 clients are remembered"`, sync,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("log lines (-want +got):\n%s", diff)
	}
}

// brokenAndGood returns a tracker's snapshots of a Service with an invalid external IP, with a
// valid one, and after its deletion.
func brokenAndGood(t *testing.T) (broken, good, gone proxy.Snapshot) {
	t.Helper()
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{})
	tracker.Synced()
	last := proxy.Snapshot{}
	next := func() proxy.Snapshot {
		last = snapshots.Next(t, tracker, last)
		return last
	}
	service := objects.Service("web", "10.96.0.10", objects.Ports("80"), objects.ExternalIPs("nonsense"))
	tracker.UpdateService(service)
	broken = next()
	service = service.DeepCopy()
	service.Spec.ExternalIPs[0] = "203.0.113.9"
	tracker.UpdateService(service)
	good = next()
	tracker.DeleteService(objects.Name("web"))
	return broken, good, next()
}

func TestSyncsAreLogged(t *testing.T) {
	t.Parallel()
	broken, good, gone := brokenAndGood(t)
	account := proxy.Sync{Changed: 1, Operations: 4, Duration: time.Millisecond}
	logSyncs := func(j *journal) {
		for i, s := range []proxy.Snapshot{broken, broken, good, gone} {
			a := account
			a.Snapshot, a.Full = s, i == 0
			if i == 0 {
				a.Err = errors.New("no luck")
			}
			j.synced(a)
		}
	}
	problem := `kind=Service object=default/web field=spec.externalIPs[0] `
	terse := []string{
		`level=ERROR msg="object problem" err="\"nonsense\" is not an IP address" ` + strings.TrimSpace(problem),
		`level=INFO msg=sync full=true changed=1 operations=4 took=1ms ports=1 failed=true`,
		`level=INFO msg=sync full=false changed=1 operations=4 took=1ms ports=1`,
		`level=INFO msg="object problem resolved" ` + problem + `was="\"nonsense\" is not an IP address"`,
		`level=INFO msg=sync full=false changed=1 operations=4 took=1ms ports=1`,
		`level=INFO msg=sync full=false changed=1 operations=4 took=1ms ports=0`,
	}
	port := `level=DEBUG+2 msg="service port" port=default/web/TCP/IPv4 `
	verbose := []string{
		terse[0], port + "frontends=1 clusterEndpoints=0 localEndpoints=0", terse[1], terse[2],
		terse[3], port + "frontends=2 clusterEndpoints=0 localEndpoints=0", terse[4],
		`level=DEBUG+2 msg="service port removed" port=default/web/TCP/IPv4`, terse[5],
	}
	for verbosity, want := range [][]string{terse, terse, verbose} {
		if diff := cmp.Diff(want, logged(verbosity, logSyncs)); diff != "" {
			t.Errorf("-v %d: log lines (-want +got):\n%s", verbosity, diff)
		}
	}
}

func TestProblemsOfTheNodeAreNamed(t *testing.T) {
	t.Parallel()
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	tracker.UpdateService(objects.Service("web", "10.96.0.10", objects.NodePort(30080)))
	tracker.Synced()
	s := snapshots.Next(t, tracker, proxy.Snapshot{})
	const want = " kind=Node object=node-1 field=status.addresses"
	if got := logged(0, func(j *journal) { j.synced(proxy.Sync{Snapshot: s}) })[0]; !strings.HasSuffix(got, want) {
		t.Errorf("log line: got %q, want it to end with %q", got, want)
	}
}

func TestPassesAreLogged(t *testing.T) {
	t.Parallel()
	pass := func(j *journal) {
		j.passed(manifest.Summary{Files: 1, Services: 2, EndpointSlices: 3, Nodes: 4, Kept: 5, Ignored: map[string]int{"v1 Pod": 6}})
	}
	for verbosity, want := range []string{"", `level=DEBUG+3 msg="manifests read" files=1 services=2 endpointSlices=3 nodes=4 kept=5 ignored="map[v1 Pod:6]"`} {
		if diff := cmp.Diff([]string{want}, logged(verbosity, pass)); diff != "" {
			t.Errorf("-v %d: log lines (-want +got):\n%s", verbosity, diff)
		}
	}
}

// TestFilesWithoutService checks that a folder without a Service, such as a wrong one, is noticed.
func TestFilesWithoutService(t *testing.T) {
	t.Parallel()
	got := logged(0, func(j *journal) {
		j.passed(manifest.Summary{})
		j.passed(manifest.Summary{Files: 2, EndpointSlices: 1, Ignored: map[string]int{"v1 Endpoints": 1}})
		j.passed(manifest.Summary{Files: 2, Services: 1})
	})
	want := []string{
		`level=INFO msg="no Services in the manifests" files=0 ignored=map[]`,
		`level=INFO msg="no Services in the manifests" files=2 ignored="map[v1 Endpoints:1]"`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("log lines (-want +got):\n%s", diff)
	}
}
