package kernelspace_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

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

// The remote subnet of a node appears while the endpoints there cannot be deleted. No load balancer is changed, at no
// list: the Services serve, and CheckNode says what waits. The endpoints are made again when that is possible.
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

// An endpoint that must be made again because its pod is on another node now, and cannot be, stays in the
// load balancers that had it, those of other Services too. If it is gone, that is no error of one port.
func TestEndpointThatCannotBeMadeAgain(t *testing.T) {
	for _, version := range []hcn.Version{newest(), noModify()} {
		for _, times := range []int{1, -1} {
			cannotMakeAgain(newOverlayOf(t, version), times)
		}
	}
}

// cannotMakeAgain has a number of calls fail.
func cannotMakeAgain(m *machine, times int) {
	t := m.t
	ports := []*proxy.ServicePort{service(1, remote(1)), service(2, remote(1))}
	m.apply(ports...)
	before, id := m.Dump(), m.ids()[elsewhere(1).String()]
	after := strings.Split(strings.Replace(before, "provider 172.18.0.3", "provider 172.18.0.4", 1), "\n")
	m.moveToNode3(elsewhere(1))
	try := func() error {
		m.applied = proxy.Snapshot{}
		return m.try(ports...)
	}
	m.fail(times, denied(), "DeleteEndpoint")
	if err := try(); !errors.Is(err, errDenied) {
		t.Errorf("%d deletes fail: got error %v, want %v", times, err, errDenied)
	}
	m.want(fmt.Sprintf("HNS %s, %d deletes fail", must(m.Version(t.Context())), times), strings.Split(before, "\n")...)
	m.SetFault(nil)
	testenv.NoError(t, try())
	m.want("deletes work", after...)
	if now := m.ids()[elsewhere(1).String()]; now == id {
		t.Errorf("deletes work: got endpoint %s as before, want another one", now)
	}

	m.SetRemoteSubnets(m.network, hcn.RemoteSubnet{Prefix: netip.MustParsePrefix("10.1.0.0/24"), ProviderAddress: netip.MustParseAddr("172.18.0.3")})
	m.fail(times, denied(), "CreateEndpoint")
	if err := try(); !errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("%d creates fail: got error %v, want %v", times, err, proxy.ErrDataplaneLost)
	}
	m.SetFault(nil)
	testenv.NoError(t, try())
	m.want("creates work", strings.Split(before, "\n")...)
}
