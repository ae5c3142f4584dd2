package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/manifest"
)

// failing is a backend whose Apply fails.
type failing struct{ err error }

func (f failing) Apply(context.Context, proxy.Snapshot, proxy.Snapshot) error { return f.err }

func (f failing) Cleanup(context.Context) error { return f.err }

func TestOnceTellsWhatTheBackendSays(t *testing.T) {
	lost := errors.New("the wire is cut")
	port := proxy.ServicePortName{Port: "http"}
	for _, c := range []struct {
		name string
		// apply is what the backend says, want what once then says.
		apply, want error
	}{
		{"all well", nil, nil},
		{"nothing done", lost, lost},
		{"a port failed", fmt.Errorf("backend: %w", proxy.PortErrors{port: lost}), errIncomplete},
		{"unsupported", fmt.Errorf("backend: %w", proxy.ErrUnsupported), proxy.ErrUnsupported},
		{"a port is unsupported", proxy.PortErrors{port: proxy.ErrUnsupported}, errIncomplete},
	} {
		t.Run(c.name, func(t *testing.T) {
			tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
			syncs := 0
			runner := &proxy.Runner{Source: tracker, Backend: failing{c.apply}, Observe: func(proxy.Sync) { syncs++ }}
			err := once(t.Context(), &manifest.Source{Path: "demo", Handler: tracker}, runner)
			if !errors.Is(err, c.want) {
				t.Errorf("once says %v, wanted %v", err, c.want)
			}
			if syncs != 1 {
				t.Errorf("%d syncs, wanted one", syncs)
			}
		})
	}
}

func TestOnceInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{})
	runner := &proxy.Runner{Source: tracker, Backend: failing{}, Observe: func(proxy.Sync) { t.Error("there was a sync") }}
	if err := once(ctx, &manifest.Source{Path: "demo", Handler: tracker}, runner); !errors.Is(err, context.Canceled) {
		t.Errorf("once says %v, wanted %v", err, context.Canceled)
	}
}
