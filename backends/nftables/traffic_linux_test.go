package nftables

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// testbed is a stagetest.Row with a backend on its node.
type testbed struct {
	*stage
	*stagetest.Row
}

func newTestbed(t testing.TB, hosts int) *testbed {
	t.Helper()
	s := newStage(t)
	return &testbed{s, stagetest.NewRow(s.Lab, hosts)}
}

// pool returns n endpoints from first on, and from the start after the last one.
func (s *testbed) pool(first, n int) []*endpoints.Endpoint {
	return snapshots.At(objects.Many(n, func(i int) netip.AddrPort { return netip.AddrPortFrom(s.Hosts[(first+i)%len(s.Hosts)], 8080) })...)
}

// No packet is lost to a commit, although a packet may see the frontend as before the commit
// and its endpoints as after it.
func TestNoConnectionIsLostToCommits(t *testing.T) {
	const (
		length = 4 * time.Second
		most   = 10_000
		least  = 100
	)
	r := testenv.Random(t)
	s := newTestbed(t, 16)
	vip := stagetest.Port(v1.IPv4Protocol, 0, 0)
	vip.Cluster = s.pool(0, 4)
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), vip))

	c := s.connectRepeatedly(t, vip.Frontends[0].Addr.String())
	commits, start := 0, time.Now()
	for ; commits < most && continues(start, length, commits >= least && c.connections.Load() >= least); commits++ {
		next := *vip
		next.Cluster = s.pool(r.IntN(len(s.Hosts)), 1+r.IntN(len(s.Hosts)))
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), &next))
	}
	elapsed := time.Since(start).Round(time.Millisecond)
	connections, failed := c.end()
	t.Logf("%d connections, %d failed, while the endpoints were replaced %d times in %v", connections, failed, commits, elapsed)
	if connections < least || commits < least {
		t.Errorf("got %d connections and %d commits, want at least %d of each", connections, commits, least)
	}
}

// continues reports whether a test must continue: it runs for a length of time, and on a busy
// machine longer, until it has done enough, but not for ever.
func continues(start time.Time, length time.Duration, shown bool) bool {
	took := time.Since(start)
	return took < length || !shown && took < 2*time.Minute
}

// crowd is a number of clients that connect repeatedly.
type crowd struct {
	connections, failed atomic.Int64
	cancel              context.CancelFunc
	wg                  sync.WaitGroup
}

// connectRepeatedly starts clients that connect repeatedly, and returns once each of them connects. Every
// connection that fails is an error of the test.
func (s *testbed) connectRepeatedly(t *testing.T, address string) *crowd {
	t.Helper()
	const clients = 8
	ctx, cancel := context.WithCancel(t.Context())
	c := &crowd{cancel: cancel}
	t.Cleanup(func() { c.end() })
	var begun sync.WaitGroup
	begun.Add(clients)
	for range clients {
		c.wg.Go(func() {
			begins := sync.OnceFunc(begun.Done)
			defer begins()
			for ctx.Err() == nil {
				begins()
				c.connections.Add(1)
				if _, err := lab.Ask(context.WithoutCancel(ctx), s.Client, "tcp", address); err != nil {
					c.failed.Add(1)
					t.Error(err)
				}
			}
		})
	}
	begun.Wait()
	return c
}

// end stops the clients and waits for their last connections.
func (c *crowd) end() (connections, failed int64) {
	c.cancel()
	c.wg.Wait()
	return c.connections.Load(), c.failed.Load()
}

// BenchmarkConnect measures a TCP connection and its greeting, from the client to a host of
// the testbed.
func BenchmarkConnect(b *testing.B) {
	for _, c := range []struct {
		name     string
		services int
	}{{"direct", 0}, {"services=1", 1}, {"services=10000", 10_000}} {
		b.Run(c.name, func(b *testing.B) {
			s := newTestbed(b, 4)
			address := netip.AddrPortFrom(s.Hosts[0], 8080).String()
			if c.services > 0 {
				var all []*proxy.ServicePort
				for i := range c.services {
					p := stagetest.Port(v1.IPv4Protocol, i, 10)
					all = append(all, p)
				}
				all[0].Cluster = s.pool(0, 4)
				address = all[0].Frontends[0].Addr.String()
				s.Apply(b, proxy.NewSnapshot(stagetest.Node(), all...))
			}
			measure(b, s, address)
		})
	}
}

func measure(b *testing.B, s *testbed, address string) {
	b.Helper()
	var times []time.Duration
	for b.Loop() {
		start := time.Now()
		_, err := lab.Ask(b.Context(), s.Client, "tcp", address)
		testenv.NoError(b, err)
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
}
