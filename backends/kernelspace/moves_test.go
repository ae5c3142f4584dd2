package kernelspace_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/backends/kernelspace"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// obstacles are what keeps an endpoint from being deleted, for a load balancer of another program: that it cannot be
// read, or that it has no key and uses the endpoint.
func obstacles() map[string]func(m *machine, endpoint string) (end func()) {
	add := func(m *machine, endpoint string) string {
		m.t.Helper()
		id, err := m.CreateLoadBalancer(m.t.Context(), hcn.LoadBalancer{
			Endpoints: []string{endpoint}, FrontendVIPs: []netip.Addr{clusterIP(200), clusterIP(201)},
			PortMappings: []hcn.PortMapping{{Protocol: 17, InternalPort: 1, ExternalPort: 1}},
		})
		testenv.NoError(m.t, err)
		return id
	}
	return map[string]func(m *machine, endpoint string) (end func()){
		"unreadable": func(m *machine, _ string) func() {
			id := add(m, m.ids()[pod(1).String()])
			m.SetFault(func(c hcntest.Call) hcntest.Fault {
				if c.Method == "LoadBalancer" && c.ID == id {
					return denied()
				}
				return hcntest.Fault{}
			})
			return func() { m.SetFault(nil) }
		},
		"foreign": func(m *machine, endpoint string) func() {
			id := add(m, endpoint)
			return func() {
				if err := m.DeleteLoadBalancer(m.t.Context(), id); err != nil {
					m.t.Error(err)
				}
			}
		},
	}
}

// An EndpointSlice names another node for the pod of a Service, while the endpoint cannot be deleted. No load
// balancer is changed, at no change and no list: the Service and all others serve, and CheckNode says what waits. The
// endpoint is made again when that is possible.
func TestMoveThatIsImpossibleNow(t *testing.T) {
	for what, begin := range obstacles() {
		synctest.Test(t, func(t *testing.T) {
			r := run(t, newMachine(t, newest()))
			r.serveOn("node-2", "web", clusterIP(1), shared())
			r.serveOn("node-2", "other", clusterIP(2), shared())
			id := r.ids()[shared().String()]
			end := begin(r.machine, id)
			r.Notify(hcn.NetworksChanged) // everything is listed
			time.Sleep(time.Minute)
			before := strings.Split(r.Dump(), "\n")
			n := r.writes(func() {
				for range 5 {
					for _, node := range []string{"node-3", "node-2"} {
						r.serveOn(node, "other", clusterIP(2), shared())
						r.serveOn(node, "web", clusterIP(1), shared())
						time.Sleep(time.Minute)
					}
				}
				r.serveOn("node-3", "other", clusterIP(2), shared())
				r.serveOn("node-3", "web", clusterIP(1), shared())
				time.Sleep(time.Hour)
			})
			if n != 0 {
				t.Errorf("%s: got %d writes, want 0", what, n)
			}
			r.want(what, before...)
			r.wantUses(what, shared(), map[string]int{"unreadable": 2, "foreign": 3}[what])
			if p := errors.Join(r.problems()...); p == nil || !strings.Contains(p.Error(), shared().String()) {
				t.Errorf("%s: got problems %v, want one with %v", what, p, shared())
			}
			end()
			time.Sleep(2 * kernelspace.DefaultListInterval)
			if now := r.ids()[shared().String()]; now == id || now == "" {
				t.Errorf("%s has ended: got endpoint %q, want another one than %q", what, now, id)
			}
			r.wantUses(what+" has ended", shared(), 2)
			if !r.finished() {
				t.Errorf("%s has ended: got problems %v, want none", what, r.problems())
			}
		})
	}
}

// So it is when the remote subnet of a node appears while the endpoints there cannot be deleted: a list, which would
// remove the load balancers of ports that fail, changes none.
func TestProviderThatCannotBeSetNow(t *testing.T) {
	for what, begin := range obstacles() {
		m := newOverlay(t)
		later := remote(256) // 10.1.1.0, without remote subnet
		m.apply(service(1, later), service(2, later))
		end := begin(m, m.ids()[elsewhere(256).String()])
		m.resync()
		want := strings.Split(strings.ReplaceAll(m.Dump(), "source 172.18.0.2", "source 10.0.0.250"), "\n")
		m.SetRemoteSubnets(m.network, hcn.RemoteSubnet{Prefix: netip.MustParsePrefix("10.1.0.0/16"), ProviderAddress: netip.MustParseAddr("172.18.0.4")})
		for list, most := range []int{2, 0} { // the source of both load balancers is modified
			if n := m.writes(m.resync); n > most {
				t.Errorf("%s, list %d: got %d writes, want at most %d", what, list, n, most)
			}
			m.want(what, want...)
		}
		if m.finished() {
			t.Errorf("%s: got no problem, want one", what)
		}
		end()
		m.resync()
		if line := "endpoint remote 10.1.1.0 mac 02-11-0A-01-01-00 provider 172.18.0.4\n"; !strings.Contains(m.Dump(), line) || !m.finished() {
			t.Errorf("%s has ended: got problems %v and\n%s\nwant none and %s", what, m.problems(), m.Dump(), line)
		}
	}
}

// An endpoint that HNS refuses to delete is taken out of load balancers and put back, and that disturbs as much as
// making it again does: the next try has a pause before it, which CheckNode names.
func TestFailedMoveIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, newest())
		m.apply(service(1, remote(1)), service(2, on("node-2", remote(1))))
		id := m.ids()[elsewhere(1).String()]
		failed := m.fail(-1, denied(), "DeleteEndpoint")
		moved := []*proxy.ServicePort{service(1, on("node-3", remote(1))), service(2, on("node-3", remote(1)))}
		if err := m.try(moved...); !errors.Is(err, errDenied) {
			t.Errorf("the first try: got error %v, want %v", err, errDenied)
		}
		m.apply(moved...)
		for range 10 {
			if n := m.writes(m.resync); n != 0 {
				t.Errorf("soon after: got %d writes, want 0", n)
			}
		}
		if p := errors.Join(m.problems()...); p == nil || !strings.Contains(p.Error(), `"node-3"`) || !strings.Contains(p.Error(), elsewhere(1).String()) {
			t.Errorf("soon after: got problems %v, want one with the address and the node", p)
		}
		time.Sleep(kernelspace.DefaultListInterval)
		m.applied = proxy.Snapshot{}
		if err := m.try(moved...); !errors.Is(err, errDenied) || failed() != 2 {
			t.Errorf("after the pause: got error %v and %d deletes, want %v and 2", err, failed(), errDenied)
		}
		m.SetFault(nil)
		time.Sleep(2 * kernelspace.DefaultListInterval)
		if !m.drifted() {
			t.Error("after the next pause: got no drift, want some")
		}
		m.resync()
		m.resync() // nobody names another node any more
		if now := m.ids()[elsewhere(1).String()]; now == id || !m.finished() {
			t.Errorf("deletes work: got endpoint %s and problems %v, want another one and none", now, m.problems())
		}
	})
}

// EndpointSlices that disagree about the node of an address are a problem of the node, with both names, as long as
// they do. That lists load balancers no more often than once in ListInterval.
func TestDisagreementIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, newMachine(t, newest()))
		r.serveOn("node-2", "right", clusterIP(1), shared())
		r.serveOn("node-3", "wrong", clusterIP(2), shared())
		r.serveOn("node-4", "wrong", clusterIP(2), shared())
		start, before := time.Now(), r.Calls()["LoadBalancerIDs"]
		for time.Since(start) < time.Hour-time.Minute { // before the resync
			time.Sleep(time.Minute)
			want := int(time.Since(start) / kernelspace.DefaultListInterval)
			if got := r.Calls()["LoadBalancerIDs"] - before; got > want {
				t.Errorf("after %v: got %d lists of load balancers, want at most %d", time.Since(start), got, want)
			}
			p := errors.Join(r.problems()...)
			if p == nil || !strings.Contains(p.Error(), shared().String()) || strings.Count(p.Error(), `"node-`) != 2 {
				t.Errorf("after %v: got problems %v, want one with %v and the nodes", time.Since(start), p, shared())
			}
		}
		r.serveOn("node-2", "wrong", clusterIP(2), shared())
		time.Sleep(24 * time.Hour)
		if !r.finished() {
			t.Errorf("they agree: got problems %v, want none", r.problems())
		}
		r.wantUses("they agree", shared(), 2)
	})
}

// An endpoint that must be made again because its pod is on another node now, and cannot be, stays in the
// load balancers that had it, those of other Services too. If it is gone, that is no error of one port.
func TestEndpointThatCannotBeMadeAgain(t *testing.T) {
	for _, version := range []hcn.Version{newest(), noModify()} {
		for _, times := range []int{1, -1} {
			synctest.Test(t, func(t *testing.T) { cannotMakeAgain(newMachine(t, version), times) })
		}
	}
}

// cannotMakeAgain has a number of calls fail.
func cannotMakeAgain(m *machine, times int) {
	t := m.t
	moved := func(node string) []*proxy.ServicePort {
		return []*proxy.ServicePort{service(1, on(node, remote(1))), service(2, on(node, remote(1)))}
	}
	m.apply(moved("node-2")...)
	before, id := strings.Split(m.Dump(), "\n"), m.ids()[elsewhere(1).String()]
	m.fail(times, denied(), "DeleteEndpoint")
	if err := m.try(moved("node-3")...); !errors.Is(err, errDenied) {
		t.Errorf("%d deletes fail: got error %v, want %v", times, err, errDenied)
	}
	m.want(fmt.Sprintf("HNS %s, %d deletes fail", must(m.Version(t.Context())), times), before...)
	m.SetFault(nil)
	time.Sleep(kernelspace.DefaultListInterval)
	m.apply(moved("node-3")...)
	if !m.drifted() {
		t.Error("deletes work: got no drift, want some: the endpoint waits")
	}
	m.resync()
	m.want("deletes work", before...)
	if now := m.ids()[elsewhere(1).String()]; now == id {
		t.Errorf("deletes work: got endpoint %s as before, want another one", now)
	}

	time.Sleep(2 * kernelspace.DefaultListInterval) // the next move is not one too soon after this one
	m.fail(times, denied(), "CreateEndpoint")
	if err := m.try(moved("node-4")...); !errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("%d creates fail: got error %v, want %v", times, err, proxy.ErrDataplaneLost)
	}
	m.SetFault(nil)
	m.apply(moved("node-4")...)
	m.want("creates work", before...)
}
