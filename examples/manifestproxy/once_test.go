package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/manifest"
)

// failing is a backend whose Apply fails.
type failing struct{ err error }

func (f failing) Apply(context.Context, proxy.Snapshot, proxy.Snapshot) error { return f.err }

func (f failing) Cleanup(context.Context) error { return f.err }

func TestOnceReturnsBackendErrors(t *testing.T) {
	t.Parallel()
	lost := errors.New("the connection was lost")
	port := proxy.ServicePortName{Port: "http"}
	for _, c := range []struct {
		name string
		// apply is the error of the backend, want that of once.
		apply, want error
	}{
		{"no error", nil, nil},
		{"nothing done", lost, lost},
		{"a port failed", fmt.Errorf("backend: %w", proxy.PortErrors{port: lost}), errIncomplete},
		{"unsupported", fmt.Errorf("backend: %w", proxy.ErrUnsupported), proxy.ErrUnsupported},
		{"a port is unsupported", proxy.PortErrors{port: proxy.ErrUnsupported}, errIncomplete},
	} {
		t.Run(c.name, func(t *testing.T) {
			tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
			syncs, lines := 0, 0
			log := funcr.New(func(_, args string) {
				if strings.Contains(args, lost.Error()) || strings.Contains(args, proxy.ErrUnsupported.Error()) {
					lines++
				}
			}, funcr.Options{})
			runner := &proxy.Runner{Source: tracker, Backend: failing{c.apply}, Logger: log, Observers: []proxy.Observer{{Synced: func(proxy.Sync) { syncs++ }}}}
			err := once(t.Context(), &manifest.Source{Path: "demo", Handler: tracker, Observe: func(manifest.Summary) {}}, runner)
			if !errors.Is(err, c.want) {
				t.Errorf("once: got error %v, want %v", err, c.want)
			}
			if want := c.want == errIncomplete; (lines == 1) != want || lines > 1 { //nolint:errorlint // it is the table's
				t.Errorf("lines with the error: got %d, want one only if once does not return it, %t", lines, want)
			}
			if syncs != 1 {
				t.Errorf("syncs: got %d, want one", syncs)
			}
		})
	}
}

func TestOnceInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{})
	runner := &proxy.Runner{Source: tracker, Backend: failing{}, Observers: []proxy.Observer{{Synced: func(proxy.Sync) { t.Error("got a sync, want none") }}}}
	if err := once(ctx, &manifest.Source{Path: "demo", Handler: tracker, Observe: func(manifest.Summary) {}}, runner); !errors.Is(err, context.Canceled) {
		t.Errorf("once: got error %v, want %v", err, context.Canceled)
	}
}
