package kernelspace_test

import (
	"testing"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// services makes Services with three endpoints elsewhere, each their own, and one here.
func services(n int) []*proxy.ServicePort {
	return objects.Many(n, func(i int) *proxy.ServicePort {
		return service(i, remote(3*i), remote(3*i+1), remote(3*i+2), local(1+i%9))
	})
}

// HNS takes milliseconds for each call, so the calls count.
func TestCalls(t *testing.T) {
	const count = 300
	for _, version := range []hcn.Version{newest(), noModify()} {
		m := newMachine(t, version)
		all := services(count)
		objects := count + 3*count
		if n := m.apply(all...); n > objects*12/10 {
			t.Errorf("HNS %s, cold: got %d calls for %d objects, want at most 1.2 for each", version, n, objects)
		}
		if n := m.apply(all...); n != 0 {
			t.Errorf("HNS %s, nothing new: got %d calls, want 0", version, n)
		}
		if n := m.apply(services(count)...); n != 0 {
			t.Errorf("HNS %s, equal Services: got %d calls, want 0", version, n)
		}
		for _, c := range []struct {
			what string
			port *proxy.ServicePort
		}{
			{"an endpoint elsewhere replaced", service(7, remote(21), remote(22), remote(2000), local(8))},
			{"an endpoint here added", service(7, remote(21), remote(22), remote(2000), local(8), local(9))},
			{"all back", all[7]},
		} {
			changed := append(all[:7:7], append([]*proxy.ServicePort{c.port}, all[8:]...)...)
			if n := m.apply(changed...); n > 8 {
				t.Errorf("HNS %s, %s: got %d calls, want at most 8", version, c.what, n)
			}
		}
		m.apply(all...)
		m.restart()
		if n := m.writes(func() { m.apply(all...) }); n != 0 {
			t.Errorf("HNS %s, restart: got %d writes, want 0", version, n)
		}
	}
}

// A new pod of this node costs a list of IDs, and one query.
func TestNewLocalPodIsLookedUp(t *testing.T) {
	m := newMachine(t, newest())
	m.apply(services(50)...)
	m.addPod(pod(100))
	before := m.Calls()
	m.apply(append(services(50), service(60, local(100)))...)
	after := m.Calls()
	if after["EndpointIDs"]-before["EndpointIDs"] != 1 || after["Endpoint"]-before["Endpoint"] != 1 || after["LoadBalancerIDs"] != before["LoadBalancerIDs"] {
		t.Errorf("calls: got %v, before %v, want one list of endpoints and one query more", after, before)
	}
}

// Rendering and comparing a change costs what the change costs, among ten Services as among ten
// thousand.
func TestChangeCostsNoMoreAmongMany(t *testing.T) {
	var allocs []float64
	for _, count := range []int{10, 10_000} {
		m := newMachine(t, newest())
		all := services(count)
		testenv.NoError(t, m.try(all...))
		old := proxy.NewSnapshot(theNode(), all...)
		// Snapshots that share everything but one port, as those of a tracker do.
		other := proxy.NewSnapshot(theNode(), append(all[:5:5], append([]*proxy.ServicePort{service(5, remote(16), local(6))}, all[6:]...)...)...)
		next := old.Revert(other, all[5].Name)
		ctx := t.Context()
		testenv.NoError(t, m.backend.Apply(ctx, m.applied, old))
		allocs = append(allocs, testing.AllocsPerRun(20, func() {
			for _, step := range [][2]proxy.Snapshot{{old, next}, {next, old}} {
				if err := m.backend.Apply(ctx, step[0], step[1]); err != nil {
					t.Error(err)
				}
			}
		}))
	}
	if allocs[1] > 1.5*allocs[0]+20 {
		t.Errorf("allocations of a change: got %v among 10 Services and %v among 10,000, want about the same", allocs[0], allocs[1])
	}
}
