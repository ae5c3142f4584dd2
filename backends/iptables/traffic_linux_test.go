package iptables

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// servedHosts is the number of addresses of a row's server.
const servedHosts = 8

// newRow makes a client on one side of a stage and a server with several addresses on the
// other.
func newRow(t *testing.T, s *stage) (client *netns.NS) {
	t.Helper()
	r := stagetest.NewRow(s.Lab, servedHosts)
	// Packets that are not translated are lost at the server.
	err := s.NS.AddRoute(netns.Route{To: netip.MustParsePrefix("0.0.0.0/0"), Link: "servers", Via: r.Hosts[0]})
	testenv.NoError(t, err)
	return r.Client
}

// While endpoints and other services are added and removed, at times all endpoints, each
// connection of a client succeeds or is refused: no packet is lost or misrouted.
func TestTrafficDuringCommits(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		r := testenv.Random(t)
		client := newRow(t, s)
		vip := newPort(v1.IPv4Protocol, 0, 0)
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), vip))
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		var answered, refusedOnes atomic.Int64
		var asking sync.WaitGroup
		for range 4 {
			asking.Go(func() {
				err := client.Do(func() error {
					for ctx.Err() == nil {
						switch err := stagetest.Ask(context.WithoutCancel(ctx), netip.Addr{}, vip.Frontends[0].Addr.String()); {
						case err == nil:
							answered.Add(1)
						case errors.Is(err, unix.ECONNREFUSED):
							refusedOnes.Add(1)
						default:
							t.Error(err)
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		commits, begun := 0, time.Now()
		showsSomething := func() bool { return answered.Load() >= 20 && refusedOnes.Load() >= 20 && commits >= 20 }
		for ; ctx.Err() == nil && (time.Since(begun) < 2*time.Second || !showsSomething()); commits++ {
			next := newPort(v1.IPv4Protocol, 0, r.IntN(4))
			for i := range next.Cluster {
				next.Cluster[i] = &endpoints.Endpoint{Addr: netip.AddrPortFrom(stagetest.HostIP(v1.IPv4Protocol, 2+r.IntN(servedHosts)), 8080)}
			}
			s.Apply(t, proxy.NewSnapshot(stagetest.Node(), append(newPorts(v1.IPv4Protocol, 1+r.IntN(3), 1)[1:], next)...))
		}
		cancel()
		asking.Wait()
		t.Logf("%d connections were answered and %d refused during %d commits", answered.Load(), refusedOnes.Load(), commits)
		if !showsSomething() {
			t.Error("got too few connections or commits, want at least 20 of each kind")
		}
	})
}
