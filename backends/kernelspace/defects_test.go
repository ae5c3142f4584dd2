package kernelspace_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/kernelspace"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Each test is a failure that users of HNS have reported.

// A query that fails changes nothing.
func TestFailedQueryChangesNothing(t *testing.T) {
	for _, method := range []string{"Version", "Network", "EndpointIDs", "LoadBalancerIDs", "LoadBalancer"} {
		m := newMachine(t, newest())
		m.apply(service(1, local(1), remote(1)), service(2, local(2)))
		before := m.Dump()
		m.restart()
		stopped := &hcn.Error{Op: method, Code: hcn.CodeManagerStopped}
		m.fail(-1, hcntest.Fault{Err: stopped}, method)
		if err := m.try(); !errors.Is(err, stopped) {
			t.Errorf("%s fails: got error %v, want %v", method, err, stopped)
		}
		m.want(method+" fails", strings.Split(before, "\n")...)
		m.SetFault(nil)
		m.apply()
		m.want("no Service, " + method + " works again")
	}
}

// While a load balancer cannot be deleted, it serves as before. Once it can be, one Apply is enough,
// and the Service is never without one.
func TestFailedDeleteKeepsTheLoadBalancer(t *testing.T) {
	m := newMachine(t, noModify())
	p := service(1, local(1), local(2))
	m.apply(p)
	before := m.Dump()
	m.fail(3, denied(), "DeleteLoadBalancer")
	for try := range 3 {
		err := m.try(sticky(p))
		if failed, ok := errors.AsType[proxy.PortErrors](err); !ok || !errors.Is(failed[p.Name], errDenied) {
			t.Errorf("try %d: got error %v, want one of %s", try, err, p.Name)
		}
		m.want("delete fails", before)
		if try == 1 {
			m.applied = proxy.Snapshot{} // what a Runner applies if it lost the state
		}
	}
	m.apply(sticky(p))
	m.want("delete works", strings.ReplaceAll(before, "distribution 0", "distribution 2"))
}

// A load balancer has one target port: that of most endpoints. The others are left out and named.
func TestMixedTargetPorts(t *testing.T) {
	m := newMachine(t, newest())
	p := service(1, local(1), local(2), local(3), at(9090, local(4)), at(9090, local(5)))
	m.apply(p)
	m.want("three endpoints of 8080 and two of 9090",
		"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1; local 10.0.0.2; local 10.0.0.3")
	m.wantLimits(p, `spec.ports: port "": a load balancer of HNS has one target port: 2 of 5 endpoints, which do not have 8080, are not used`)
}

// wantLimits compares the limits of a port.
func (m *machine) wantLimits(p *proxy.ServicePort, want ...string) {
	m.t.Helper()
	var got []string
	for _, l := range m.backend.Abilities().CheckLimits(theNode(), p) {
		got = append(got, l.Field+": "+l.Err.Error())
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		m.t.Errorf("limits: got %q, want %q", got, want)
	}
}

// A load balancer that cannot be opened or deleted is not forgotten.
func TestFailedOpenIsNoDeletion(t *testing.T) {
	m := newMachine(t, newest())
	m.apply(service(1, remote(1)))
	before := m.Dump()
	m.fail(1, denied(), "DeleteLoadBalancer")
	testenv.NoError(t, m.try())
	m.want("delete failed once", strings.Split(before, "\n")...) // the endpoint is still used
	if m.finished() {
		t.Error("got nothing unfinished, want a load balancer that could not be deleted")
	}
	m.resync()
	m.want("afterwards")
	if !m.finished() {
		t.Errorf("got %v, want nothing unfinished", m.problems())
	}
}

// Load balancers that another program deletes are made again.
func TestDeletedOutOfBand(t *testing.T) {
	m := newMachine(t, newest())
	m.apply(service(1, local(1)), service(2, remote(2)))
	before := m.Dump()
	for _, b := range m.LoadBalancers() {
		testenv.NoError(t, m.DeleteLoadBalancer(t.Context(), b.ID))
	}
	m.resync()
	m.want("after the resync", strings.Split(before, "\n")...)
	// A change finds out by itself.
	for _, b := range m.LoadBalancers() {
		testenv.NoError(t, m.DeleteLoadBalancer(t.Context(), b.ID))
	}
	m.apply(service(1, local(2)), service(2, remote(2)))
	m.want("after a change",
		"endpoint remote 10.1.0.2 mac 02-11-0A-01-00-02",
		"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.2")
}

// Health checks are TCP, whatever the protocol of the Service is, and have the flag of IPv6.
func TestHealthCheckPolicy(t *testing.T) {
	m := newMachine(t, newest())
	m.options.HealthChecks = kernelspace.HealthChecks{Endpoint: "cbr0", Port: 10256}
	m.restart()
	root, err := m.AddEndpoint(m.network, "cbr0", netip.MustParseAddr("10.0.0.200"), netip.MustParseAddr("fd00:10::200"))
	testenv.NoError(t, err)
	m.addPod(netip.MustParseAddr("fd00:10::1"))
	udp := with(service(1, local(1)), frontend(proxy.LoadBalancer, "203.0.113.1", 53))
	udp.Name.Protocol = v1.ProtocolUDP
	tcp := *udp
	tcp.Name.Protocol = v1.ProtocolTCP
	six := &proxy.ServicePort{Name: udp.Name, Cluster: []*endpoints.Endpoint{{Addr: netip.MustParseAddrPort("[fd00:10::1]:8080"), Local: true}}, HealthCheckNodePort: 32000}
	six.Name.Family = v1.IPv6Protocol
	six = with(six, frontend(proxy.LoadBalancer, "2001:db8::1", 53))
	m.apply(udp, &tcp, six)
	var checks []string
	for line := range strings.SplitSeq(m.Dump(), "\n") {
		if strings.Contains(line, "10.0.0.200") {
			checks = append(checks, line)
		}
	}
	want := []string{
		"load balancer 2001:db8::1:32000/6->32000 distribution 0 flags 0 flags 2 to local 10.0.0.200,fd00:10::200",
		"load balancer 203.0.113.1:10256/6->10256 distribution 0 flags 0 flags 0 to local 10.0.0.200,fd00:10::200",
	}
	if strings.Join(checks, "\n") != strings.Join(want, "\n") {
		t.Errorf("health checks: got\n%s\nwant\n%s", strings.Join(checks, "\n"), strings.Join(want, "\n"))
	}
	m.restart()
	if n := m.writes(func() { m.apply(udp, &tcp, six) }); n != 0 {
		t.Errorf("after a restart: got %d writes, want 0", n)
	}
	m.RemoveEndpoint(root)
	m.apply(&tcp)
	m.apply()
	m.want("no Service")
}

// writes returns how many calls that write f makes.
func (m *machine) writes(f func()) (n int) {
	before := m.Calls()
	f()
	for method, after := range m.Calls() {
		if strings.HasPrefix(method, "Create") || strings.HasPrefix(method, "Modify") || strings.HasPrefix(method, "Delete") {
			n += after - before[method]
		}
	}
	return n
}

// An object of another program without addresses, ports or content is left alone.
func TestForeignObjectsWithoutContent(t *testing.T) {
	m := newMachine(t, newest())
	pod1 := m.Endpoints()[0].ID
	foreign := hcn.LoadBalancer{
		Endpoints: []string{pod1}, FrontendVIPs: []netip.Addr{clusterIP(200), clusterIP(201)},
		PortMappings: []hcn.PortMapping{{Protocol: 6, ExternalPort: 1}, {Protocol: 6, ExternalPort: 2}},
	}
	if _, err := m.CreateLoadBalancer(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	if _, err := m.AddEndpoint(m.network, "no address"); err != nil {
		t.Fatal(err)
	}
	c := emptied{m.Sim}
	backend, err := kernelspace.New(c, m.options)
	testenv.NoError(t, err)
	m.backend = backend
	before := m.Dump()
	m.apply(service(1, local(1)))
	m.resync()
	m.apply()
	m.want("afterwards", before)
	if err := m.backend.Cleanup(t.Context()); err != nil {
		t.Error(err)
	}
	m.want("after Cleanup", before)
}

// emptied is an HNS whose load balancers of several ports have none.
type emptied struct{ *hcntest.Sim }

func (e emptied) LoadBalancer(ctx context.Context, id string) (hcn.LoadBalancer, error) {
	b, err := e.Sim.LoadBalancer(ctx, id)
	if len(b.PortMappings) > 1 {
		b.PortMappings = nil
	}
	return b, err
}

// Every part of a load balancer counts, also its source address, which is no part of its key.
func TestEveryFieldIsCompared(t *testing.T) {
	for _, version := range []hcn.Version{newest(), noModify()} {
		m := newMachine(t, version)
		m.apply(service(1, local(1)))
		m.options.SourceVIPs = []netip.Addr{netip.MustParseAddr("172.18.0.3")}
		m.options.DSR = true
		m.restart()
		m.apply(service(1, local(1)))
		m.want("other options",
			"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 1 source 172.18.0.3 to local 10.0.0.1")
	}
}

// A change of one port of a Service leaves the load balancers of the others alone.
func TestOtherPortsAreLeftAlone(t *testing.T) {
	m := newMachine(t, noModify())
	first := service(1, local(1))
	second := service(1, local(1))
	second.Name.Port = "second"
	second.Frontends[0].Addr = netip.AddrPortFrom(clusterIP(1), 81)
	m.apply(first, second)
	if n := m.writes(func() { m.apply(sticky(first), second) }); n != 2 {
		t.Errorf("got %d writes, want a delete and a create", n)
	}
}

// Without direct server return, a Local policy still selects endpoints of this node, and its limit is named.
func TestLocalPolicyWithoutDSR(t *testing.T) {
	m := newMachine(t, hcn.Version{Major: 9, Minor: 2})
	p := service(1, local(1), remote(1))
	p.Local = []*endpoints.Endpoint{p.Cluster[0]}
	f := frontend(proxy.LoadBalancer, "203.0.113.1", 80)
	f.FromInside = proxy.TrafficRoute{Action: proxy.Forward}
	f.FromOutside = proxy.TrafficRoute{Action: proxy.Forward, Pool: proxy.PoolLocal}
	p = with(p, f)
	m.apply(p)
	m.want("without DSR", "endpoint remote 10.1.0.1 mac 02-11-0A-01-00-01",
		"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1; remote 10.1.0.1",
		"load balancer 203.0.113.1:80/6->8080 distribution 0 flags 16 flags 0 source 172.18.0.2 to local 10.0.0.1")
	m.wantLimits(p,
		"spec.externalTrafficPolicy: HNS cannot distinguish connections from inside the cluster: those to external addresses and node ports also reach endpoints of this node only",
		"spec.externalTrafficPolicy: this version of HNS has no direct server return: endpoints do not see the addresses of clients")
}

// An object that cannot be read, of another program or of the backend itself, keeps no Service from being
// served. Nothing is deleted that it may refer to, and it is named.
func TestUnreadableObject(t *testing.T) {
	for _, isOwn := range []bool{false, true} {
		m := newMachine(t, newest())
		foreign := hcn.LoadBalancer{
			Endpoints: []string{m.Endpoints()[0].ID}, FrontendVIPs: []netip.Addr{clusterIP(99)},
			PortMappings: []hcn.PortMapping{{Protocol: 17, InternalPort: 1, ExternalPort: 1}},
		}
		if _, err := m.CreateLoadBalancer(t.Context(), foreign); err != nil {
			t.Fatal(err)
		}
		empty := m.Dump()
		m.apply(service(9, remote(1)))
		hidden := m.LoadBalancers()[0].ID // in the order of the dump: 10.96.0.99:1, 10.96.0.9:80
		if isOwn {
			hidden = m.LoadBalancers()[1].ID
		}
		before := m.Dump()
		m.SetFault(func(c hcntest.Call) hcntest.Fault {
			if c.Method == "LoadBalancer" && c.ID == hidden {
				return denied()
			}
			return hcntest.Fault{}
		})
		m.restart()
		m.apply(service(1, local(1)))
		if p := m.problems(); len(p) != 1 || !strings.Contains(p[0].Error(), hidden) {
			t.Errorf("own %v: got problems %v, want one with %s", isOwn, p, hidden)
		}
		const served = "load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1"
		if isOwn {
			m.want("own one hidden", append(strings.Split(before, "\n"), served)...)
		} else { // the endpoint stays: the hidden one may refer to it
			m.want("foreign one hidden", empty, served, "endpoint remote 10.1.0.1 mac 02-11-0A-01-00-01")
		}
		m.resync()
		m.SetFault(nil)
		m.resync()
		m.want("readable again", empty, served)
		if p := m.problems(); len(p) != 0 {
			t.Errorf("own %v, readable again: got problems %v, want none", isOwn, p)
		}
	}
}

// forgetful is an HNS that once lists no load balancers.
type forgetful struct {
	*hcntest.Sim
	forgets bool
}

func (f *forgetful) LoadBalancerIDs(ctx context.Context) ([]string, error) {
	if f.forgets {
		f.forgets = false
		return nil, nil
	}
	return f.Sim.LoadBalancerIDs(ctx)
}

// A list that lacks load balancers does not make them another program's.
func TestListThatLacksObjects(t *testing.T) {
	m := newMachine(t, newest())
	m.apply(service(1, local(1)))
	f := &forgetful{Sim: m.Sim}
	m.backend = must(kernelspace.New(f, m.options))
	m.applied, f.forgets = proxy.Snapshot{}, true
	m.apply()
	m.resync()
	m.want("no Service")
}

// If endpoints vanish again and again while a load balancer is replaced, the former one is made again.
func TestRefusedReplacementKeepsTheLoadBalancer(t *testing.T) {
	m := newMachine(t, noModify())
	p := service(1, local(1), local(2))
	m.apply(p)
	before := m.Dump()
	m.fail(1, hcntest.Fault{Err: &hcn.Error{Op: "HcnCreateLoadBalancer", Code: hcn.CodeInvalidParameter}}, "CreateLoadBalancer")
	if failed, _ := errors.AsType[proxy.PortErrors](m.try(sticky(p))); failed[p.Name] == nil {
		t.Errorf("got error %v, want one of %s", failed, p.Name)
	}
	m.want("the other one was refused", before)
}

func TestEndpointsVanishWhileReplaced(t *testing.T) {
	m := newMachine(t, noModify())
	p := service(1, local(1), local(2))
	m.apply(p)
	before := m.Dump()
	m.fail(2, hcntest.Fault{Err: &hcn.Error{Op: "HcnCreateLoadBalancer", Code: hcn.CodeEndpointNotFound}}, "CreateLoadBalancer")
	if failed, _ := errors.AsType[proxy.PortErrors](m.try(sticky(p))); failed[p.Name] == nil {
		t.Errorf("got error %v, want one of %s", failed, p.Name)
	}
	m.want("afterwards", before)
	m.apply(p)
	m.fail(-1, hcntest.Fault{Err: &hcn.Error{Op: "HcnCreateLoadBalancer", Code: hcn.CodeEndpointNotFound}}, "CreateLoadBalancer")
	if err := m.try(sticky(p)); !errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("nothing can be made: got error %v, want %v", err, proxy.ErrDataplaneLost)
	}
	m.SetFault(nil)
	m.apply(p)
	m.want("HNS works again", before)
}
