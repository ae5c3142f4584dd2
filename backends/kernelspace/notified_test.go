package kernelspace_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/backends/kernelspace"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
)

// While an endpoint of this node is awaited, other pods come and go: each notification costs at most a
// list of endpoints and a query, whatever else HNS has. The awaited endpoint serves soon after it appears.
func TestNotificationsOfEndpointsAreCheap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, newMachine(t, newest()))
		for i := range 100 {
			r.serve(fmt.Sprintf("web-%d", i), clusterIP(i), pod(1+i%9))
		}
		r.serve("awaits", clusterIP(200), pod(200))
		time.Sleep(time.Minute) // retries have long pauses now
		before := r.Calls()
		const count = 500
		for i := range count {
			id := r.addPod(pod(1000 + i))
			time.Sleep(100 * time.Millisecond)
			r.RemoveEndpoint(id)
			time.Sleep(100 * time.Millisecond)
		}
		for method, most := range map[string]int{"EndpointIDs": 2*count + 10, "Endpoint": count, "Network": 10, "LoadBalancerIDs": 0, "LoadBalancer": 0} {
			if got := r.Calls()[method] - before[method]; got > most {
				t.Errorf("%d notifications: got %d calls of %s, want at most %d", 2*count, got, method, most)
			}
		}
		before = r.Calls()
		for range 20_000 { // as fast as they come
			r.Notify(hcn.EndpointsChanged)
			time.Sleep(time.Millisecond)
		}
		if got := r.Calls()["EndpointIDs"] - before["EndpointIDs"]; got > 500 {
			t.Errorf("20 s of notifications: got %d lists of endpoints, want at most 25 a second", got)
		}
		before = r.Calls()
		r.addPod(pod(200))
		time.Sleep(200 * time.Millisecond)
		if line := "load balancer 10.96.0.200:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.200"; !strings.Contains(r.Dump(), line) {
			t.Errorf("after the endpoint has appeared: got\n%s\nwant %s", r.Dump(), line)
		}
		if got := r.Calls()["LoadBalancer"] - before["LoadBalancer"]; got > 0 {
			t.Errorf("serving it: got %d queries of load balancers, want 0", got)
		}
	})
}

// A pod of this node that is replaced by one with its address has another endpoint. No object of the API
// need change; the notification is enough. Without one, the next list finds it.
func TestPodReplacedByOneWithItsAddress(t *testing.T) {
	for _, version := range []hcn.Version{newest(), noModify()} {
		synctest.Test(t, func(t *testing.T) {
			r := run(t, newMachine(t, version))
			r.serve("web", clusterIP(1), pod(1))
			r.serve("same", clusterIP(2), pod(1))
			r.serve("other", clusterIP(3), pod(2))
			before, ids := r.Dump(), r.ids()
			calls := r.Calls()
			r.RemoveEndpoint(ids["10.0.0.1"])
			r.addPod(pod(1))
			time.Sleep(200 * time.Millisecond)
			r.wantUses("replaced", pod(1), 2)
			r.want("replaced", strings.Split(before, "\n")...)
			if got := r.Calls()["LoadBalancerIDs"] - calls["LoadBalancerIDs"]; got > 0 {
				t.Errorf("HNS %s: got %d lists of load balancers, want 0", version, got)
			}
		})
	}
}

// wantUses checks that this number of load balancers uses the endpoint that has an address, and none
// one that does not exist.
func (m *machine) wantUses(when string, a netip.Addr, want int) {
	m.t.Helper()
	at, got := map[string]netip.Addr{}, 0
	for _, e := range m.Endpoints() {
		at[e.ID] = e.Addresses[0]
	}
	for _, b := range m.LoadBalancers() {
		for _, id := range b.Endpoints {
			if used, exists := at[id]; !exists {
				m.t.Errorf("%s: load balancer of %v uses endpoint %s, which does not exist", when, b.FrontendVIPs, id)
			} else if used == a {
				got++
			}
		}
	}
	if got != want {
		m.t.Errorf("%s: got %d load balancers that use %v, want %d", when, got, a, want)
	}
}

// vague is an HNS that notifies of endpoints whatever has happened.
type vague struct{ *hcntest.Sim }

func (v vague) Wait(ctx context.Context) (hcn.Event, error) {
	_, err := v.Sim.Wait(ctx)
	return hcn.EndpointsChanged, err
}

// A notification of endpoints may be all that is heard of a network that was removed and made again:
// nothing is deleted because its endpoints are gone, and all is made in the new one.
func TestNetworkBehindNotificationOfEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, newest())
		m.backend = must(kernelspace.New(vague{m.Sim}, m.options))
		r := run(t, m)
		r.serve("web", clusterIP(1), pod(1))
		ids := r.LoadBalancers()
		r.RemoveNetwork(r.network)
		time.Sleep(time.Minute)
		if now := r.LoadBalancers(); len(now) != 1 || now[0].ID != ids[0].ID {
			t.Errorf("without network: got load balancers %v, want %v", now, ids)
		}
		r.addNetwork(hcn.Network{Name: networkName, Type: "L2Bridge"})
		time.Sleep(time.Minute)
		r.want("a new network", webLine)
	})
}
