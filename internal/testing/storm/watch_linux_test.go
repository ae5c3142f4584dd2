package storm

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/pause"
	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/cluster"
)

// connect makes connections of random flights at the rate in the options.
func (s *storm) connect(ctx context.Context) {
	const atOnce = 2000
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	defer all.Wait()
	var present, absent []flight
	known := -1
	tick := time.NewTicker(time.Second / time.Duration(s.options.rate))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		newest, applied, sequence, _ := s.model.now()
		if sequence != known {
			present, absent, known = flights(newest), absentFlights(newest), sequence
		}
		if len(present) == 0 || applied == 0 {
			continue
		}
		f := present[rand.IntN(len(present))]
		if rand.IntN(10) == 0 && len(absent) > 0 {
			f = absent[rand.IntN(len(absent))]
		}
		select {
		case slots <- struct{}{}:
		default:
			s.judge.count("too many at once", 1)
			continue
		}
		all.Go(func() {
			begin := time.Now()
			got := s.traffic.try(ctx, f, s.options.patience())
			got.refuser = s.refusal
			s.judge.sample(f, &got, begin, applied)
			<-slots
		})
	}
}

// controls returns flights directly to an endpoint.
func controls() (all []flight) {
	for from, at := range map[cluster.Name]cluster.Name{cluster.Client: cluster.Local, cluster.Outside: cluster.Remote} {
		to := netip.AddrPortFrom(cluster.Find(at).Addrs[0], cluster.EndpointPort)
		all = append(all, flight{from: from, to: to, protocol: v1.ProtocolTCP})
	}
	return all
}

// watchControl makes connections directly to an endpoint.
func (s *storm) watchControl(ctx context.Context, f flight) {
	for ctx.Err() == nil {
		begin := time.Now()
		got := s.traffic.try(ctx, f, s.options.patience())
		s.judge.control(trial{begin, time.Now(), got.answered()})
		_ = pause.For(ctx, 100*time.Millisecond) // The loop ends with ctx, too.
	}
}

// healthAddress is the address of the agent's health server on its node.
const healthAddress = "127.0.0.1:10256"

// watchHealth requests /healthz from the agent.
func (s *storm) watchHealth(ctx context.Context) {
	for ctx.Err() == nil {
		at := time.Now()
		ok := isHealthy(ctx, s.world.node)
		s.judge.addHealth(healthSample{at, ok})
		_ = pause.For(ctx, 100*time.Millisecond) // The loop ends with ctx, too.
	}
}

func isHealthy(ctx context.Context, node *netns.NS) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	text, err := agenttest.Page(ctx, node.Dial, "http://"+healthAddress+"/healthz")
	return err == nil && strings.HasPrefix(text, "200 ")
}
