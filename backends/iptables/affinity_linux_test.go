package iptables

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/proxy"
)

// If the kernel remembers fewer clients than the options require, service ports with affinity
// are refused.
func TestAffinityLimit(t *testing.T) {
	t.Parallel()
	o := Options{AffinityClients: rememberedClients() + 1}
	s := newStage(t, o)
	bad := newPort(v1.IPv4Protocol, 1, 2)
	bad.Affinity = affinity.Config{Timeout: time.Hour}
	err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, proxy.NewSnapshot(stagetest.Node(), newPort(v1.IPv4Protocol, 0, 2), bad))
	failed, ok := errors.AsType[proxy.PortErrors](err)
	if !ok || len(failed) != 1 || failed[bad.Name] == nil || !strings.Contains(err.Error(), "ip_list_tot=") {
		t.Errorf("got error %v, want one of %s that names the parameter", err, bad.Name)
	}
	o.Families = []v1.IPFamily{v1.IPv6Protocol}
	alone := newStage(t, o)
	alone.Apply(t, proxy.NewSnapshot(stagetest.Node(), bad)) // the backend does not serve that family
}

// The number of clients that the kernel remembers may change while the backend runs: refused
// service ports are then served, and served ones refused.
func TestAffinityLimitChanges(t *testing.T) {
	remembered := uint32(0)
	NeedPrograms(t, Options{})
	b := stagetest.NewStage(t, Options{AffinityClients: 1}, func(o Options) (proxy.Backend, error) {
		return newBackend(o, func() uint32 { return remembered }, nil)
	}).Backend
	plain, sticky := newPort(v1.IPv4Protocol, 0, 2), newPort(v1.IPv4Protocol, 1, 2)
	sticky.Affinity = affinity.Config{Timeout: time.Hour}
	both, one := proxy.NewSnapshot(stagetest.Node(), plain, sticky), proxy.NewSnapshot(stagetest.Node(), plain)
	refused := func(err error) bool {
		failed, ok := errors.AsType[proxy.PortErrors](err)
		return ok && failed[sticky.Name] != nil
	}
	if err := b.Apply(t.Context(), proxy.Snapshot{}, both); !refused(err) {
		t.Errorf("kernel remembers no clients: got error %v, want one of %s", err, sticky.Name)
	}
	remembered = 1
	if err := b.Apply(t.Context(), one, both); !errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("after a change: got error %v, want %v", err, proxy.ErrDataplaneLost)
	}
	if err := b.Apply(t.Context(), proxy.Snapshot{}, both); err != nil {
		t.Errorf("kernel remembers enough clients: got error %v, want none", err)
	}
	if err := b.Apply(t.Context(), both, both); err != nil {
		t.Errorf("the same again: got error %v, want none", err)
	}
	remembered = 0
	for _, old := range []proxy.Snapshot{both, {}} {
		err := b.Apply(t.Context(), old, both)
		if !old.IsZero() && !errors.Is(err, proxy.ErrDataplaneLost) || old.IsZero() && !refused(err) {
			t.Errorf("kernel remembers too few clients, from %d ports: got error %v, want one", old.Len(), err)
		}
	}
}
