package main

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

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

func TestSyncsAreLogged(t *testing.T) {
	t.Parallel()
	small, large := snapshots.Port("default/web", "10.96.0.10:80"), snapshots.Port("default/web", "10.96.0.10:80")
	large.Frontends = append(large.Frontends, large.Frontends[0])
	logSyncs := func(j *journal) {
		for i, ports := range [][]*proxy.ServicePort{{small}, {large}, nil} {
			a := proxy.Sync{Snapshot: proxy.NewSnapshot(&proxy.Node{}, ports...), Full: i == 0, Changed: 1, Operations: 4, Duration: time.Millisecond}
			if i == 0 {
				a.Err = errors.New("no luck")
			}
			j.synced(a)
		}
	}
	terse := []string{
		`level=INFO msg=sync full=true changed=1 operations=4 took=1ms ports=1 failed=true`,
		`level=INFO msg=sync full=false changed=1 operations=4 took=1ms ports=1`,
		`level=INFO msg=sync full=false changed=1 operations=4 took=1ms ports=0`,
	}
	port := `level=DEBUG+2 msg="service port" port=default/web/TCP/IPv4 `
	verbose := []string{
		port + "frontends=1 clusterEndpoints=0 localEndpoints=0", terse[0],
		port + "frontends=2 clusterEndpoints=0 localEndpoints=0", terse[1],
		`level=DEBUG+2 msg="service port removed" port=default/web/TCP/IPv4`, terse[2],
	}
	for verbosity, want := range [][]string{terse, terse, verbose} {
		if diff := cmp.Diff(want, logged(verbosity, logSyncs)); diff != "" {
			t.Errorf("-v %d: log lines (-want +got):\n%s", verbosity, diff)
		}
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
