package proxy

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestDraining: endpoints that are not selected any more, but serve, are draining.
func TestDraining(t *testing.T) {
	hinted := []string{"10.0.0.1 zones=a", "10.0.0.2 zones=b"}
	for _, tc := range []struct {
		name      string
		protocol  v1.Protocol
		edits     []edit
		endpoints []string
		want      []string
	}{
		{"all are ready", v1.ProtocolUDP, nil, []string{"10.0.0.1", "10.0.0.2"}, nil},
		{"one terminates", v1.ProtocolUDP, nil, []string{"10.0.0.1 T", "10.0.0.2"}, []string{"10.0.0.1"}},
		{"all terminate", v1.ProtocolUDP, nil, []string{"10.0.0.1 T", "10.0.0.2 T"}, nil},
		{"one does not serve", v1.ProtocolUDP, nil, []string{"10.0.0.1 U", "10.0.0.2"}, nil},
		{"one terminates, SCTP", v1.ProtocolSCTP, nil, []string{"10.0.0.1 T", "10.0.0.2"}, []string{"10.0.0.1"}},
		{"one terminates, TCP", v1.ProtocolTCP, nil, []string{"10.0.0.1 T", "10.0.0.2"}, nil},
		{"another zone", v1.ProtocolUDP, nil, hinted, []string{"10.0.0.2"}},
		{"another zone, SCTP", v1.ProtocolSCTP, nil, hinted, []string{"10.0.0.2"}},
		{"another zone, TCP", v1.ProtocolTCP, nil, hinted, nil},
		{"another node", v1.ProtocolUDP, []edit{objects.InternalLocal}, []string{"10.0.0.1 @here", "10.0.0.2 @there", "10.0.0.3 @here T"}, []string{"10.0.0.2", "10.0.0.3"}},
		{"both pools", v1.ProtocolUDP, []edit{objects.NodePort(30053), objects.ExternalLocal}, []string{"10.0.0.1 @here", "10.0.0.2 @there"}, nil},
	} {
		tr := newTestTracker(func(*TrackerOptions) {})
		tr.UpdateNode(objects.Node("here", "a", "192.168.0.1"))
		tr.UpdateService(apiService("dns", "10.96.0.1", append([]edit{func(s *v1.Service) { s.Spec.Ports[0].Protocol = tc.protocol }}, tc.edits...)...))
		slice := apiSlice("dns-1", "dns", tc.endpoints...)
		slice.Ports[0].Protocol = &tc.protocol
		tr.UpdateEndpointSlice(slice)
		tr.Synced()
		s := newest(t, tr)
		if s.Len() != 1 {
			t.Errorf("%s: got %d ports, want 1", tc.name, s.Len())
		}
		for p := range s.All() {
			testenv.Same(t, tc.want, hosts(p.Draining), "%s: draining endpoints", tc.name)
		}
	}
}

// TestDrainingOf: with the Local policy, only draining endpoints of this node keep flows.
func TestDrainingOf(t *testing.T) {
	here := &endpoints.Endpoint{Addr: netip.MustParseAddrPort("10.0.0.1:53"), Local: true}
	p := &ServicePort{Draining: []*endpoints.Endpoint{here, {Addr: netip.MustParseAddrPort("10.0.0.2:53")}}}
	for r, want := range map[TrafficRoute]int{
		{Action: Forward, Pool: PoolCluster}: 2, {Action: Forward, Pool: PoolLocal}: 1, {Action: Drop}: 1, {Action: Reject}: 2,
	} {
		got := slices.Collect(p.DrainingOf(r))
		if len(got) != want || got[0] != here {
			t.Errorf("%v: got %v, want %d endpoints", r, got, want)
		}
	}
	for range p.DrainingOf(TrafficRoute{}) {
		break
	}
}

func hosts(pool []*endpoints.Endpoint) (out []string) {
	for _, e := range pool {
		out = append(out, e.Addr.Addr().String())
	}
	return out
}

// A local endpoint that terminates, or that topology does not prefer, is in pool Local alone if the external policy
// is Local: it keeps the flows that the Cluster policy decides about, such as flows from pods.
func TestFlowsOfPoolLocalStay(t *testing.T) {
	for name, now := range map[string][]string{
		"terminates": {"10.0.0.1 @here T", "10.0.0.2 @there"},
		"topology":   {"10.0.0.1 @here zones=b", "10.0.0.2 @there zones=a"},
	} {
		tr := newTestTracker(func(*TrackerOptions) {})
		tr.UpdateNode(objects.Node("here", "a", "192.168.0.1"))
		udp := v1.ProtocolUDP
		tr.UpdateService(apiService("dns", "10.96.0.1", func(s *v1.Service) { s.Spec.Ports[0].Protocol = udp }, objects.NodePort(30053), objects.LoadBalancer("203.0.113.9"), objects.ExternalLocal))
		slice := apiSlice("dns-1", "dns", now...)
		slice.Ports[0].Protocol = &udp
		tr.UpdateEndpointSlice(slice)
		tr.Synced()
		for p := range newest(t, tr).All() {
			pod, _, _ := p.Frontends[0].Routes()
			kept := hosts(slices.Collect(p.DrainingOf(pod)))
			testenv.Same(t, []string{"10.0.0.1"}, kept, "%s: endpoints outside of the pool of pods that keep flows", name)
		}
	}
}

// needy is a backend that may need a FlowCleaner.
type needy struct {
	NoAbilities
	needs bool
}

func (needy) Apply(context.Context, Snapshot, Snapshot) error { return nil }
func (needy) Cleanup(context.Context) error                   { return nil }

func (n needy) Abilities() (a Abilities) {
	if n.needs {
		a.FoundFrontends = func() []*ServicePort { return nil }
	}
	return a
}

// idle is a FlowCleaner that finds nothing.
type idle struct{}

func (idle) RemoveStale(context.Context, Snapshot, bool) error { return nil }
func (idle) AddFrontends([]*ServicePort)                       {}
func (idle) RetryDue() bool                                    { return false }

// TestForgottenFlows: a Runner that lacks the FlowCleaner that its Backend needs says so once.
func TestForgottenFlows(t *testing.T) {
	for _, c := range []struct {
		name    string
		backend Backend
		flows   FlowCleaner
		lines   int
	}{
		{"forgotten", needy{needs: true}, nil, 1},
		{"set", needy{needs: true}, idle{}, 0},
		{"not needed", needy{}, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lines := 0
				tr := newTestTracker()
				tr.Synced()
				r := &Runner{Source: tr, Backend: c.backend, FlowCleaner: c.flows, Logger: funcr.New(func(_, line string) {
					if strings.Contains(line, "FlowCleaner of the Runner is not set") {
						lines++
					}
				}, funcr.Options{})}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := r.Run(ctx); err != nil {
					t.Error(err)
				}
				if lines != c.lines {
					t.Errorf("got %d lines, want %d", lines, c.lines)
				}
			})
		})
	}
}

// predecessor is a backend that finds a frontend in each full Apply, and a FlowCleaner that gets it.
type predecessor struct {
	needy
	idle

	found *ServicePort
	got   []*ServicePort
}

func (f *predecessor) Abilities() Abilities {
	return Abilities{FoundFrontends: func() []*ServicePort { return []*ServicePort{f.found} }}
}

func (f *predecessor) AddFrontends(found []*ServicePort) { f.got = append(f.got, found...) }

// TestFoundFrontends: what a Backend finds in an Apply from the zero Snapshot, and only then, gets to FlowCleaner.
func TestFoundFrontends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &predecessor{found: &ServicePort{}}
		tr := newTestTracker()
		tr.Synced()
		r := &Runner{Source: tr, Backend: f, FlowCleaner: f}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		time.AfterFunc(time.Second, func() { tr.UpdateService(apiService("web", "10.96.0.1")) })
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
		if len(f.got) != 1 || f.got[0] != f.found {
			t.Errorf("got %v, want what the Backend has found, once", f.got)
		}
	})
}

// refusedOnce is a predecessor whose first full Apply fails after it has removed what it found.
type refusedOnce struct {
	predecessor

	applies int
}

func (f *refusedOnce) Apply(context.Context, Snapshot, Snapshot) error {
	if f.applies++; f.applies == 1 {
		return errors.New("another family is locked")
	}
	return nil
}

func (f *refusedOnce) Abilities() Abilities {
	return Abilities{FoundFrontends: func() []*ServicePort {
		if f.applies == 1 {
			return []*ServicePort{f.found}
		}
		return nil
	}}
}

// TestFoundBeforeAnError: a full Apply that fails may have removed what it found, so that the next one does not
// find it.
func TestFoundBeforeAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &refusedOnce{predecessor: predecessor{found: &ServicePort{}}}
		tr := newTestTracker()
		tr.Synced()
		r := &Runner{Source: tr, Backend: f, FlowCleaner: f}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
		if f.applies < 2 || len(f.got) != 1 || f.got[0] != f.found {
			t.Errorf("after %d applies: got %v, want what the first one has found", f.applies, f.got)
		}
	})
}
