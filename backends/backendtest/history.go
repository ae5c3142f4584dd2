package backendtest

import (
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	build "github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// sample is a Service of a history.
type sample struct{ cluster.Sample }

// randomSample makes a Service of a random kind, with random endpoints.
func randomSample(r *rand.Rand, number int) sample {
	s := sample{cluster.RandomSample(r, number, []string{"192.0.2.0/24"}, []string{"198.51.100.0/24", "172.18.0.2/32", "10.0.0.6/32"})}
	for _, at := range []cluster.Name{cluster.Local, cluster.Local2, cluster.Remote, cluster.Remote2, cluster.Node} {
		if r.IntN(2) == 0 {
			s.Endpoints = append(s.Endpoints, cluster.Endpoint{At: at, Conditions: randomConditions(r)})
		}
	}
	return s
}

func randomConditions(r *rand.Rand) discoveryv1.EndpointConditions {
	return build.Endpoint("10.0.0.1 " + build.OneOf(r, "", "R", "T", "X", "U")).Conditions
}

// exposed is a Service at all nodes and at an external address, with endpoints at some hosts.
func exposed(number int, at ...cluster.Name) *cluster.Sample {
	return &cluster.Sample{
		Number: number, Type: v1.ServiceTypeNodePort, ExternalIP: true, External: v1.ServiceExternalTrafficPolicyCluster,
		Endpoints: cluster.EndpointsAt(at...),
	}
}

// history is a tracker with its samples, which change at random.
type history struct {
	random  *rand.Rand
	tracker tracking
	samples []sample
	last    proxy.Snapshot
	// plain says that samples have no session affinity.
	plain bool
	// first is the number of the first sample.
	first int
}

func newHistory(r *rand.Rand, tracker tracking, samples int, plain bool) *history {
	h := &history{random: r, tracker: tracker, plain: plain, first: 1}
	h.begin(samples)
	return h
}

// begin makes a number of samples, and hands them to the tracker.
func (h *history) begin(samples int) {
	for i := range samples {
		s := h.sample(h.first + i)
		h.samples = append(h.samples, s)
		o := s.Objects()
		o.HandTo(h.tracker)
	}
	h.tracker.Synced()
}

// sample makes a Service by number.
func (h *history) sample(number int) sample {
	s := randomSample(h.random, number)
	if h.plain {
		s.Affinity = 0
	}
	return s
}

// next changes some Services, or removes them or their endpoints for a while, and returns
// the next snapshot.
func (h *history) next(t testing.TB) proxy.Snapshot {
	t.Helper()
	for range 1 + h.random.IntN(3) {
		i := h.random.IntN(len(h.samples))
		h.samples[i] = h.sample(h.first + i)
		o := h.samples[i].Objects()
		switch h.random.IntN(5) {
		case 0:
			for _, s := range o.Services {
				h.tracker.DeleteService(nameOf(s))
			}
		case 1:
			for _, s := range o.Slices {
				h.tracker.DeleteEndpointSlice(nameOf(s))
			}
		default:
			o.HandTo(h.tracker)
		}
	}
	h.last = snapshots.Next(t, h.tracker, proxy.Snapshot{})
	return h.last
}
