package kernelspace_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/kernelspace"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// An endpoint or load balancer that HNS keeps although it reports that it was deleted goes with
// the next list.
func TestDeletedInNameOnly(t *testing.T) {
	m := newMachine(t, newest())
	m.apply(service(1, remote(1), remote(2)), service(2, remote(2)))
	m.fail(-1, hcntest.Fault{Ignored: true}, "DeleteEndpoint")
	m.apply(service(1, remote(2)), service(2, remote(2)))
	m.fail(-1, hcntest.Fault{Ignored: true}, "DeleteLoadBalancer")
	m.apply(service(1, remote(2)))
	m.SetFault(nil)
	m.resync()
	m.want("after a list", "endpoint remote 10.1.0.2 mac 02-11-0A-01-00-02",
		"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to remote 10.1.0.2")
}

// Load balancers go before the endpoints that they use, and endpoints come before them; the
// simulated HNS records a violation otherwise.
func TestOrderOfDeletes(t *testing.T) {
	m := newMachine(t, newest())
	m.apply(service(1, remote(1)), service(2, remote(1), remote(2)))
	m.restart()
	m.apply()
	m.want("no Service")
}

// A load balancer without endpoints is deleted, and not refused for ever; with an endpoint it
// comes again.
func TestNoEndpoints(t *testing.T) {
	for _, version := range []hcn.Version{newest(), noModify()} {
		m := newMachine(t, version)
		p := with(service(1, remote(1)), frontend(proxy.NodePort, "0.0.0.0", 30080))
		m.apply(p)
		before := m.Dump()
		empty := with(service(1), frontend(proxy.NodePort, "0.0.0.0", 30080))
		m.apply(empty)
		m.want("no endpoints")
		m.wantLimits(empty,
			"spec: without endpoints HNS has no load balancer: connections to 10.96.0.1:80 get no refusal",
			"spec: without endpoints HNS has no load balancer: connections to 0.0.0.0:30080 get no refusal")
		m.apply(p)
		m.want("an endpoint again", strings.Split(before, "\n")...)
	}
}

// A load balancer whose only endpoint has gone from HNS is not left at no endpoints: it goes, and
// comes when the endpoint does.
func TestEndpointVanishes(t *testing.T) {
	for _, version := range []hcn.Version{newest(), noModify()} {
		m := newMachine(t, version)
		m.apply(service(1, local(1)))
		before := m.Dump()
		m.RemoveEndpoint(m.Endpoints()[0].ID)
		m.resync()
		m.want("the endpoint has gone")
		m.addPod(pod(1))
		m.resync()
		m.want("it is there again", before)
		// The same, noticed by HNS's own error.
		m.RemoveEndpoint(m.Endpoints()[0].ID)
		m.apply(service(1, local(1), local(2)))
		m.want("one of two", strings.ReplaceAll(before, "10.0.0.1", "10.0.0.2"))
	}
}

// A source address that HNS refuses concerns only the port, whose error has the code.
func TestRefusedSourceAddress(t *testing.T) {
	m := newMachine(t, newest())
	m.fail(1, hcntest.Fault{Err: &hcn.Error{Op: "HcnCreateLoadBalancer", Code: 0x803b002f}}, "CreateLoadBalancer")
	err := m.try(service(1, remote(1)), service(2, remote(1)))
	failed, ok := errors.AsType[proxy.PortErrors](err)
	if !ok || len(failed) != 1 || !strings.Contains(err.Error(), "0x803b002f") {
		t.Errorf("got error %v, want one of one port with the code", err)
	}
	m.want("one of two", "endpoint remote 10.1.0.1 mac 02-11-0A-01-00-01",
		"load balancer 10.96.0.2:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to remote 10.1.0.1")
}

// A node port with the number of a service port is another load balancer.
func TestNodePortLikeServicePort(t *testing.T) {
	m := newMachine(t, newest())
	p := service(1, local(1))
	p.Frontends[0].Addr = netip.AddrPortFrom(clusterIP(1), 30080)
	m.apply(with(p, frontend(proxy.NodePort, "0.0.0.0", 30080)))
	want := []string{
		"load balancer 10.96.0.1:30080/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1",
		"load balancer 172.18.0.2:30080/6->8080 distribution 0 flags 18 flags 0 source 172.18.0.2 to local 10.0.0.1",
	}
	m.want("both", want...)
	m.restart()
	if n := m.writes(func() { m.apply(with(p, frontend(proxy.NodePort, "0.0.0.0", 30080))) }); n != 0 {
		t.Errorf("after a restart: got %d writes, want 0", n)
	}
	m.apply(p)
	m.want("without node port", want[0])
}

// Changes of endpoints elsewhere do not touch a Service whose internal policy is Local.
func TestInternalPolicyLocal(t *testing.T) {
	m := newMachine(t, newest())
	p := func(elsewhere int) *proxy.ServicePort {
		p := service(1)
		p.InternalLocal, p.Local = true, []*endpoints.Endpoint{local(1)}
		p.Frontends[0].FromInside = proxy.TrafficRoute{Action: proxy.Forward, Pool: proxy.PoolLocal}
		p.Frontends[0].FromOutside = p.Frontends[0].FromInside
		p.Draining = []*endpoints.Endpoint{remote(elsewhere)}
		return p
	}
	m.apply(p(1))
	m.want("local endpoints only",
		"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1")
	if n := m.apply(p(2)); n != 0 {
		t.Errorf("an endpoint elsewhere changes: got %d calls, want 0", n)
	}
}

// While HNS does not run, Apply says so and names no port.
func TestHNSIsDown(t *testing.T) {
	m := newMachine(t, newest())
	m.apply(service(1, local(1)))
	before := m.Dump()
	m.fail(-1, hcntest.Fault{Err: &hcn.Error{Op: "HcnOp", Code: 0x6b5}}, "CreateLoadBalancer", "ModifyLoadBalancer", "Network", "Version", "DeleteLoadBalancer", "CreateEndpoint")
	for _, zero := range []bool{false, true} {
		if zero {
			m.applied = proxy.Snapshot{}
		}
		err := m.try(service(1, local(2)), service(2, remote(2)))
		if _, named := errors.AsType[proxy.PortErrors](err); named || !errors.Is(err, backends.ErrUnavailable) {
			t.Errorf("from the zero snapshot: %t: got error %v, want %v", zero, err, backends.ErrUnavailable)
		}
	}
	m.want("HNS is down", before)
}

// If another load balancer has the address and port, that one is deleted, and no other.
func TestCreateDeletesTheOneInTheWay(t *testing.T) {
	m := newMachine(t, newest())
	m.apply(service(1, local(1)))
	own := m.Dump()
	foreign := func(i int) {
		b := hcn.LoadBalancer{
			Endpoints: []string{m.Endpoints()[5].ID}, FrontendVIPs: []netip.Addr{clusterIP(i)},
			PortMappings: []hcn.PortMapping{{Protocol: 6, InternalPort: 1, ExternalPort: 80}},
		}
		if _, err := m.CreateLoadBalancer(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	foreign(2)
	foreign(3)
	m.apply(service(1, local(1)), service(2, local(1)))
	m.want("one in the way, and one not", own, strings.ReplaceAll(own, "10.96.0.1", "10.96.0.2"),
		"load balancer 10.96.0.3:80/6->1 distribution 0 flags 0 flags 0 to local 10.0.0.6")
}

// In an overlay network, the endpoint of an address whose pod is on another node now is made again, also if several load
// balancers use it.
func TestReusedPodAddress(t *testing.T) {
	for _, version := range []hcn.Version{newest(), noModify()} {
		m := newOverlayOf(t, version)
		m.apply(service(1, remote(1), local(1)), service(2, remote(1)), service(3, remote(2)))
		before, ids := m.Dump(), m.ids()
		moved := on("node-3", remote(1))
		m.moveToNode3(elsewhere(1))
		m.resync()
		m.apply(service(1, moved, local(1)), service(2, moved), service(3, remote(2)))
		m.want("moved", strings.Split(strings.Replace(before, "mac 02-11-0A-01-00-01 provider 172.18.0.3", "mac 02-11-0A-01-00-01 provider 172.18.0.4", 1), "\n")...)
		if now := m.ids(); now["10.1.0.1"] == ids["10.1.0.1"] || now["10.1.0.2"] != ids["10.1.0.2"] {
			t.Errorf("endpoints: got %v, before %v, want another one for 10.1.0.1 only", now, ids)
		}
		m.restart()
		if n := m.writes(func() { m.apply(service(1, moved, local(1)), service(2, moved), service(3, remote(2))) }); n != 0 {
			t.Errorf("after a restart: got %d writes, want 0", n)
		}
	}
}

// ids returns the IDs of all endpoints by address.
func (m *machine) ids() map[string]string {
	all := map[string]string{}
	for _, e := range m.Endpoints() {
		all[e.Addresses[0].String()] = e.ID
	}
	return all
}

// A modification that is refused, or that has no effect, is replaced by a new load balancer.
func TestModifyWithoutEffect(t *testing.T) {
	for what, fault := range map[string]hcntest.Fault{
		"refused": {Err: &hcn.Error{Op: "HcnModifyLoadBalancer", Code: hcn.CodeNotImplemented}},
		"ignored": {Ignored: true},
	} {
		m := newMachine(t, newest())
		m.apply(service(1, local(1)), service(2, local(1)))
		m.fail(-1, fault, "ModifyLoadBalancer")
		m.apply(service(1, local(2)), service(2, local(1)))
		m.apply(service(1, local(2)), service(2, local(3)))
		m.want(what,
			"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.2",
			"load balancer 10.96.0.2:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.3")
		want := map[string]int{"refused": 1, "ignored": 2}[what] // only a refusal is one of all load balancers
		m.apply(service(1, local(4)), service(2, local(5)))
		if n := m.Calls()["ModifyLoadBalancer"]; n != want {
			t.Errorf("%s: got %d modifications, want %d: none is tried again", what, n, want)
		}
		if p := m.problems(); len(p) != 1 {
			t.Errorf("%s: got problems %v, want one", what, p)
		}
		m.SetFault(nil)
		m.Notify(hcn.Disconnected)
		testenv.NoError(t, m.waitDrift())
		m.resync()
		m.apply(service(1, local(6)), service(2, local(5)))
		if n := m.Calls()["ModifyLoadBalancer"]; n != want+1 || len(m.problems()) != 0 {
			t.Errorf("%s, HNS has started again: got %d modifications and problems %v, want %d and none", what, n, m.problems(), want+1)
		}
	}
}

// A pod that moves here gets its own endpoint instead of the remote one, which would keep the
// address from it; and one that moves away the other way round.
func TestLocalEndpointWins(t *testing.T) {
	m := newMachine(t, newest())
	here, there := local(1), on("node-2", local(1))
	there.Local = false
	m.RemoveEndpoint(m.ids()["10.0.0.1"])
	m.apply(service(1, there))
	m.want("elsewhere", "endpoint remote 10.0.0.1 mac 02-11-0A-00-00-01",
		"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to remote 10.0.0.1")
	m.apply(service(1))
	id := m.addPod(pod(1))
	const local = "load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1"
	m.apply(service(1, here))
	m.want("here", local)
	m.apply(service(1, there)) // the EndpointSlice is late, or wrong
	m.want("here, whatever the EndpointSlice says", local)
	m.RemoveEndpoint(id)
	m.resync()
	m.want("elsewhere again", "endpoint remote 10.0.0.1 mac 02-11-0A-00-00-01",
		"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to remote 10.0.0.1")
}

// A network that was made again is followed once two queries agree on it.
func TestNetworkIsMadeAgain(t *testing.T) {
	for _, version := range []hcn.Version{newest(), noModify()} {
		m := newMachine(t, version)
		all := []*proxy.ServicePort{service(1, local(1), remote(1)), service(2, remote(2))}
		m.apply(all...)
		before := m.Dump()
		m.RemoveNetwork(m.network)
		m.applied = proxy.Snapshot{}
		if err := m.try(all...); !errors.Is(err, backends.ErrUnavailable) || !errors.Is(err, hcn.ErrNotFound) {
			t.Errorf("no network: got error %v, want %v", err, backends.ErrUnavailable)
		}
		if got := len(m.LoadBalancers()); got != 2 {
			t.Errorf("no network: got %d load balancers, want both", got)
		}
		m.addNetwork(hcn.Network{Name: networkName, Type: "L2Bridge"})
		n := 0
		m.SetFault(func(c hcntest.Call) hcntest.Fault {
			if c.Method == "Network" {
				n++
			}
			return hcntest.Fault{}
		})
		m.apply(all...)
		m.want("the network is there again", strings.Split(before, "\n")...)
		if n != 2 {
			t.Errorf("got %d queries of the network, want 2", n)
		}
	}
}

// What the version of HNS cannot do is an error at the start, or of the ports that need it.
func TestUnsupported(t *testing.T) {
	m := newMachine(t, hcn.Version{Major: 9, Minor: 1})
	if err := m.try(); !errors.Is(err, proxy.ErrUnsupported) {
		t.Errorf("HNS 9.1: got error %v, want %v", err, proxy.ErrUnsupported)
	}
	m = newMachine(t, hcn.Version{Major: 10, Minor: 1})
	m.options.DSR = true
	m.restart()
	if err := m.try(); !errors.Is(err, proxy.ErrUnsupported) {
		t.Errorf("DSR with HNS 10.1: got error %v, want %v", err, proxy.ErrUnsupported)
	}
	m = newMachine(t, server2019())
	m.options.Families = nil
	m.restart()
	six := &proxy.ServicePort{Name: service(1).Name, Cluster: []*endpoints.Endpoint{{Addr: netip.MustParseAddrPort("[fd00::1]:80")}}}
	six.Name.Family = v1.IPv6Protocol
	err := m.try(service(1, local(1)), with(six, frontend(proxy.ClusterIP, "fd00:96::1", 80)))
	failed, ok := errors.AsType[proxy.PortErrors](err)
	if !ok || len(failed) != 1 || !errors.Is(failed[six.Name], proxy.ErrUnsupported) {
		t.Errorf("IPv6 with HNS 9.5: got error %v, want %v of %s", err, proxy.ErrUnsupported, six.Name)
	}
	if err := m.backend.Apply(ended(t), proxy.Snapshot{}, m.applied); err == nil {
		t.Error("ended context: got no error, want one")
	}
}

// Options that cannot work are refused.
func TestOptions(t *testing.T) {
	for i, o := range []kernelspace.Options{
		{},
		{Network: "n", Families: []v1.IPFamily{"IPv5"}},
		{Network: "n", SourceVIPs: []netip.Addr{nodeAddr, nodeAddr}},
		{Network: "n", SourceVIPs: []netip.Addr{{}}},
		{Network: "n", Identity: backends.Identity{Name: "UPPER"}},
	} {
		if _, err := kernelspace.New(hcntest.New(newest(), nodeAddr), o); err == nil {
			t.Errorf("options %d: got no error, want one: %s", i, fmt.Sprint(o))
		}
	}
}

// While a load balancer cannot be deleted, another Service with its address waits: it is named, and
// served as soon as the delete works. If HNS can modify, nothing has to wait.
func TestCreateWaitsForDelete(t *testing.T) {
	for _, version := range []hcn.Version{newest(), noModify()} {
		m := newMachine(t, version)
		shared := frontend(proxy.ExternalIP, "203.0.113.1", 80)
		m.apply(with(service(1, local(1)), shared))
		m.fail(-1, denied(), "DeleteLoadBalancer")
		m.apply(service(1, local(1))) // the load balancer cannot be deleted
		next := with(service(2, local(2)), shared)
		err := m.try(service(1, local(1)), next)
		failed, _ := errors.AsType[proxy.PortErrors](err)
		if waits := failed[next.Name] != nil; waits != !version.Features().Modify || len(failed) > 1 {
			t.Errorf("HNS %s: got error %v, want one of %s if HNS cannot modify", version, err, next.Name)
		}
		m.SetFault(nil)
		m.apply(service(1, local(1)), next)
		m.want("HNS "+version.String()+", deletes work",
			"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1",
			"load balancer 10.96.0.2:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.2",
			"load balancer 203.0.113.1:80/6->8080 distribution 0 flags 16 flags 0 source 172.18.0.2 to local 10.0.0.2")
	}
}

// An address that moves from one Service to another is never without a load balancer if HNS can
// modify.
func TestAddressMoves(t *testing.T) {
	m := newMachine(t, newest())
	port := frontend(proxy.NodePort, "0.0.0.0", 30080)
	m.apply(with(service(1, local(1)), port), service(2, local(2)))
	before := m.Calls()
	m.apply(service(1, local(1)), with(service(2, local(2)), port))
	after := m.Calls()
	if after["CreateLoadBalancer"] != before["CreateLoadBalancer"] || after["DeleteLoadBalancer"] != before["DeleteLoadBalancer"] {
		t.Errorf("calls: got %v, before %v, want a modification only", after, before)
	}
	m.want("moved",
		"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1",
		"load balancer 10.96.0.2:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.2",
		"load balancer 172.18.0.2:30080/6->8080 distribution 0 flags 18 flags 0 source 172.18.0.2 to local 10.0.0.2")
}
