package iptables

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// static is a source that delivers one snapshot.
type static struct{ snapshot proxy.Snapshot }

func (s static) Next(ctx context.Context, after proxy.Snapshot) (proxy.Snapshot, error) {
	if after.IsZero() {
		return s.snapshot, nil
	}
	<-ctx.Done()
	return proxy.Snapshot{}, ctx.Err()
}

// firstSync returns the Sync of the first Apply of a Runner.
func firstSync(t *testing.T, b proxy.Backend, s proxy.Snapshot) (first proxy.Sync) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := proxy.Runner{Source: static{s}, Backend: b, Observers: []proxy.Observer{{Synced: func(s proxy.Sync) { first = s; cancel() }}}}
	testenv.NoError(t, r.Run(ctx))
	return first
}

// A Runner reports how many clients of an endpoint have session affinity. The test checks that
// the kernel remembers as many and no more.
func TestAffinityIsLimited(t *testing.T) {
	t.Parallel()
	for _, f := range flavours() {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			s := newStage(t, Options{Flavour: f})
			sticky := func(fam v1.IPFamily, i, n int) *proxy.ServicePort {
				p := newPort(fam, i, n)
				p.Affinity = affinity.Config{Timeout: time.Hour}
				return p
			}
			two, single := sticky(v1.IPv4Protocol, 1, 2), sticky(v1.IPv4Protocol, 2, 1)
			snapshot := proxy.NewSnapshot(stagetest.Node(), newPort(v1.IPv4Protocol, 0, 2), two, single, sticky(v1.IPv4Protocol, 3, 0), sticky(v1.IPv6Protocol, 4, 3))
			sync := firstSync(t, s.Backend, snapshot)
			if sync.Err != nil || len(sync.Limits) != 2 {
				t.Fatalf("Sync: got limits %v, error %v, want limits of two ports", sync.Limits, sync.Err)
			}
			count := s.remembers(t)
			want := fmt.Sprintf("Service %s: spec.sessionAffinity: the kernel remembers %d clients of an endpoint;", two.Name.NamespacedName, count)
			if text := sync.Limits[0].Error(); !strings.HasPrefix(text, want) || !strings.HasSuffix(text, "larger ip_list_tot") {
				t.Errorf("limit: got %q, want %q and a remedy", text, want)
			}
		})
	}
}

// remembers adds many clients of an endpoint to the kernel's list, and returns how many of
// them the list then has.
func (s *stage) remembers(t *testing.T) (count int) {
	t.Helper()
	netnstest.NeedRoot(t, "writes to /proc/net/xt_recent")
	requested := int(rememberedClients()) + 100
	err := s.NS.Do(func() error {
		lists, err := filepath.Glob("/proc/thread-self/net/xt_recent/*")
		if err != nil || len(lists) == 0 {
			return fmt.Errorf("lists of clients: got none, want one: %w", err)
		}
		for i := range requested {
			if err := os.WriteFile(lists[0], fmt.Appendf(nil, "+10.9.%d.%d\n", i>>8, i&255), 0); err != nil {
				return err
			}
		}
		text, err := os.ReadFile(lists[0])
		count = strings.Count(string(text), "src=")
		return err
	})
	testenv.NoError(t, err)
	if count == 0 || count == requested {
		t.Fatalf("clients that the kernel remembers: got %d of %d, want some and not all", count, requested)
	}
	return count
}
