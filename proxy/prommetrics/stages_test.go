package prommetrics

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/proxy"
)

func key(name string) types.NamespacedName { return objects.Name("ns/" + name) }

func TestInitialStateIsNotTimed(t *testing.T) {
	inBubble(t, "", func(t *testing.T, n *node) {
		wantSamples(t, n.Registry, "after the start", stagePattern)
		wantSamples(t, n.Registry, "after the start", "_changes_(pending|total)",
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
			"kubeproxy_sync_proxy_rules_endpoint_changes_total 0",
			"kubeproxy_sync_proxy_rules_service_changes_pending 0",
			"kubeproxy_sync_proxy_rules_service_changes_total 2")
	})
}

func TestStages(t *testing.T) {
	inBubble(t, "", func(t *testing.T, n *node) {
		// An Apply takes a second; further changes are received after half of it.
		n.UpdateEndpointSlice(slice("a", "10.0.0.1", time.Now().Add(-3*time.Second)))
		n.settle(500 * time.Millisecond)
		n.UpdateService(service("b", "10.96.0.3"))
		n.DeleteService(key("a"))
		n.settle(0)
		wantSamples(t, n.Registry, "meanwhile", "_pending",
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
			"kubeproxy_sync_proxy_rules_service_changes_pending 2")
		n.settle(time.Minute)
		wantSamples(t, n.Registry, "afterwards", stagePattern, slices.Concat(
			stages("EndpointSlice", 1, "1", "3", "0", "4"), stages("Service", 2, "2", "", "1", "3"))...)
		wantSamples(t, n.Registry, "afterwards", "network_programming_duration_seconds_(sum|count)",
			`kubeproxy_network_programming_duration_seconds_sum{ip_family="IPv4"} 4`,
			`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} 1`)
		wantSamples(t, n.Registry, "afterwards", "_changes_(pending|total)",
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
			"kubeproxy_sync_proxy_rules_endpoint_changes_total 1",
			"kubeproxy_sync_proxy_rules_service_changes_pending 0",
			"kubeproxy_sync_proxy_rules_service_changes_total 4")
	})
}

// Updates without effect are not timed, and do not make a later change look slow.
func TestNoDifference(t *testing.T) {
	inBubble(t, "", func(t *testing.T, n *node) {
		n.UpdateService(service("a", "10.96.0.1"))
		n.UpdateEndpointSlice(slice("c", "10.0.0.1", time.Now()))
		n.DeleteService(key("unknown"))
		n.DeleteEndpointSlice(key("unknown-1"))
		n.UpdateService(nil)
		n.UpdateEndpointSlice(nil)
		n.settle(time.Minute)
		wantSamples(t, n.Registry, "without effect", stagePattern)
		wantSamples(t, n.Registry, "without effect", "_pending",
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
			"kubeproxy_sync_proxy_rules_service_changes_pending 0")
		n.UpdateService(service("a", "10.96.0.9"))
		n.settle(time.Minute)
		wantSamples(t, n.Registry, "after a change", stagePattern, stages("Service", 1, "1", "", "0", "1")...)
	})
}

// Failed attempts are part of the duration of a change.
func TestFailuresAreTimed(t *testing.T) {
	inBubble(t, "", func(t *testing.T, n *node) {
		n.backend.set(func(b *backend) { b.err = io.ErrUnexpectedEOF })
		n.UpdateService(service("a", "10.96.0.9"))
		n.settle(0)
		n.UpdateEndpointSlice(slice("b", "10.0.0.1", time.Now()))
		n.settle(5 * time.Second)
		n.UpdateEndpointSlice(slice("b", "10.0.0.2", time.Now())) // after 5 seconds; it fails at 6 again
		n.settle(time.Second)
		wantSamples(t, n.Registry, "while all fails", stagePattern)

		portB := proxy.ServicePortName{NamespacedName: key("b"), Protocol: v1.ProtocolTCP, Family: v1.IPv4Protocol}
		n.backend.set(func(b *backend) { b.err = proxy.PortErrors{portB: io.ErrNoProgress} })
		n.settle(time.Minute) // A retry is over after 37 seconds, others after 38, 40, 44 and so on until 69.
		wantSamples(t, n.Registry, "while b fails", stagePattern, stages("Service", 1, "37", "", "0", "37")...)
		wantSamples(t, n.Registry, "while b fails", "unprogrammed", "vipkit_unprogrammed_service_ports 1")

		n.backend.set(func(b *backend) { b.err = nil })
		n.settle(time.Minute)
		wantSamples(t, n.Registry, "when all works", stagePattern, slices.Concat(
			stages("EndpointSlice", 1, "68", "0", "1", "69"), stages("Service", 1, "37", "", "0", "37"))...)
		wantSamples(t, n.Registry, "when all works", "network_programming_duration_seconds_(sum|count)",
			`kubeproxy_network_programming_duration_seconds_sum{ip_family="IPv4"} 133`,
			`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} 2`)
		wantSamples(t, n.Registry, "when all works", "unprogrammed", "vipkit_unprogrammed_service_ports 0")
	})
}

func TestTriggersAreBounded(t *testing.T) {
	inBubble(t, "", func(t *testing.T, n *node) {
		n.backend.set(func(b *backend) { b.err = io.ErrUnexpectedEOF })
		for i := range 3 * maxTriggers {
			n.UpdateEndpointSlice(slice("a", fmt.Sprintf("10.0.0.%d", 1+i%200), time.Now()))
			n.settle(time.Second)
		}
		n.metrics.mu.Lock()
		defer n.metrics.mu.Unlock()
		if got := len(n.metrics.changes[key("a")].triggers[0]); got != maxTriggers {
			t.Errorf("got %d triggers, want %d", got, maxTriggers)
		}
	})
}

// Services that wait while the dataplane fails are bounded; those that wait keep their times.
func TestChangesAreBounded(t *testing.T) {
	inBubble(t, "", func(t *testing.T, n *node) {
		n.backend.set(func(b *backend) { b.err = io.ErrUnexpectedEOF })
		n.UpdateEndpointSlice(slice("a", "10.0.0.1", time.Now()))
		n.settle(time.Second)
		n.metrics.mu.Lock()
		for i := len(n.metrics.changes); i < maxChanges; i++ {
			n.metrics.changes[key(fmt.Sprint(i))] = &change{}
		}
		n.metrics.mu.Unlock()
		n.UpdateService(service("b", "10.96.0.2"))
		n.UpdateEndpointSlice(slice("a", "10.0.0.2", time.Now()))
		n.settle(time.Second)
		n.metrics.mu.Lock()
		defer n.metrics.mu.Unlock()
		if got := len(n.metrics.changes); got != maxChanges {
			t.Errorf("got %d Services, want %d", got, maxChanges)
		}
		if a := n.metrics.changes[key("a")]; a == nil || len(a.triggers[0]) != 2 {
			t.Errorf("a Service that waits: got %+v, want its later change too", a)
		}
	})
}

// With several goroutines that update the tracker, the Runner gets all changes, and all are
// finished.
func TestNoChangeIsLost(t *testing.T) {
	m, _ := newMetrics(t, "")
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{})
	tracker.Synced()
	b := &backend{}
	reached := make(chan proxy.Snapshot, 10000)
	runner := &proxy.Runner{Source: tracker, Backend: b, Observers: []proxy.Observer{
		{Synced: func(s proxy.Sync) { reached <- s.Applied }}, m.Observer(tracker),
	}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- runner.Run(ctx) }()

	const writers, services = 4, 50
	var wait sync.WaitGroup
	for i := range writers {
		wait.Go(func() {
			for j := range services {
				tracker.UpdateService(service(fmt.Sprintf("s%d-%d", i, j), fmt.Sprintf("10.96.%d.%d", i, j+1)))
			}
		})
	}
	wait.Wait()
	for s := range reached {
		if s.Len() == writers*services {
			break
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.changes) != 0 {
		t.Errorf("got %d changes left, want none", len(m.changes))
	}
}

// The Runner ends with an error of its source.
func TestSourceThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := newMetrics(t, "")
		runner := &proxy.Runner{Source: failing{}, Backend: &backend{}, Observers: []proxy.Observer{m.Observer(nil)}}
		if err := runner.Run(t.Context()); err == nil {
			t.Error("got no error, want that of the source")
		}
	})
}
