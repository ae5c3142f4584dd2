package kernelspace_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/kernelspace"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/proxy"
)

// nth has the nth call of a method fail, once.
func (m *machine) nth(n int, method string, f hcntest.Fault) {
	m.SetFault(func(c hcntest.Call) hcntest.Fault {
		if c.Method != method {
			return hcntest.Fault{}
		}
		if n--; n == 0 {
			return f
		}
		return hcntest.Fault{}
	})
}

// Each load balancer of a port that fails is as it was before or as it should be, also if the context has ended
// meanwhile. The next Apply makes what is missing, and writes nothing else.
func TestFailedPortIsFinishedLater(t *testing.T) {
	p := func(i int) *proxy.ServicePort {
		return with(service(1, remote(i)), frontend(proxy.NodePort, "0.0.0.0", 30080))
	}
	refused := hcntest.Fault{Err: &hcn.Error{Op: "HcnCreateLoadBalancer", Code: hcn.CodeInvalidParameter}}
	m := newMachine(t, newest())
	at := func(vip string, flags, i int) string {
		return fmt.Sprintf("load balancer %s/6->8080 distribution 0 flags %d flags 0 source 172.18.0.2 to remote 10.1.0.%d", vip, flags, i)
	}
	endpoint := func(i int) string { return fmt.Sprintf("endpoint remote 10.1.0.%d mac 02-11-0A-01-00-%02d", i, i) }
	const other = "load balancer 10.96.0.2:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1"
	finish := func(i, writes int) {
		t.Helper()
		m.SetFault(nil)
		if n := m.writes(func() { m.apply(p(i), service(2, local(1))) }); n != writes {
			t.Errorf("the next Apply: got %d writes, want %d", n, writes)
		}
		m.want("the next Apply", endpoint(i), at("10.96.0.1:80", 0, i), other, at("172.18.0.2:30080", 18, i))
	}
	m.nth(2, "CreateLoadBalancer", refused)
	if _, ok := errors.AsType[proxy.PortErrors](m.try(p(1), service(2, local(1)))); !ok {
		t.Error("the second of three load balancers is refused: got no error of the port, want one")
	}
	m.want("a new port failed", endpoint(1), at("10.96.0.1:80", 0, 1), other)
	finish(1, 1)
	m.nth(2, "ModifyLoadBalancer", refused)
	if _, ok := errors.AsType[proxy.PortErrors](m.try(p(2), service(2, local(1)))); !ok {
		t.Error("the second of two modifications is refused: got no error of the port, want one")
	}
	m.want("a changed port failed", endpoint(1), endpoint(2), at("10.96.0.1:80", 0, 2), other, at("172.18.0.2:30080", 18, 1))
	finish(2, 2) // the former endpoint goes

	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	m.SetFault(func(c hcntest.Call) hcntest.Fault {
		if c.Method != "ModifyLoadBalancer" {
			return hcntest.Fault{}
		}
		if n++; n == 2 {
			cancel()
			return hcntest.Fault{Err: ctx.Err()}
		}
		return hcntest.Fault{}
	})
	err := m.backend.Apply(ctx, m.applied, proxy.NewSnapshot(theNode(), p(3), service(2, local(1))))
	if !errors.Is(err, context.Canceled) || !errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("the context ends: got error %v, want %v and %v", err, context.Canceled, proxy.ErrDataplaneLost)
	}
	m.want("the context has ended", endpoint(2), endpoint(3), at("10.96.0.1:80", 0, 3), other, at("172.18.0.2:30080", 18, 2))
	m.applied = proxy.Snapshot{}
	finish(3, 2)
}

// HNS of some versions has a pod with the address of a remote endpoint, which another pod had
// before. Load balancers use that of the pod, and the other one goes.
func TestPodAndRemoteEndpointWithOneAddress(t *testing.T) {
	m := newMachine(t, newest())
	m.ShareAddresses()
	m.RemoveEndpoint(m.ids()["10.0.0.1"])
	there := on("node-2", local(1))
	there.Local = false
	m.apply(service(1, there), service(2, there))
	m.addPod(pod(1))
	m.apply(service(1, local(1)), service(2, there))
	m.resync()
	m.want("one Service still says that the pod is elsewhere",
		"endpoint remote 10.0.0.1 mac 02-11-0A-00-00-01",
		"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1",
		"load balancer 10.96.0.2:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1")
	m.apply(service(1, local(1)), service(2, local(1)))
	m.want("none does",
		"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1",
		"load balancer 10.96.0.2:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1")
}

// EndpointSlices may name different nodes, or none, for an address of a pod elsewhere, and other ones later. Nothing in
// HNS depends on that, so nothing is written.
func TestNodeOfPodElsewhere(t *testing.T) {
	for what, m := range map[string]*machine{"L2Bridge": newMachine(t, newest()), "overlay": newOverlay(t)} {
		first := []*proxy.ServicePort{service(1, on("", remote(1))), service(2, on("node-2", remote(1)))}
		then := []*proxy.ServicePort{service(1, on("node-3", remote(1))), service(2, on("", remote(1)))}
		m.apply(first...)
		if n := m.writes(func() {
			m.apply(then...)
			m.resync()
			m.restart()
			m.apply(first...)
			m.apply(then...)
		}); n != 0 {
			t.Errorf("%s: got %d writes, want 0", what, n)
		}
	}
}

// unsteady is an HNS whose network has another ID at each query.
type unsteady struct {
	*hcntest.Sim
	queries int
}

func (u *unsteady) Network(ctx context.Context, name string) (hcn.Network, error) {
	n, err := u.Sim.Network(ctx, name)
	if u.queries++; u.queries > 1 {
		n.ID += strings.Repeat("x", u.queries)
	}
	return n, err
}

// Two queries must agree before a network counts as made again: until then nothing changes.
func TestNetworkIsConfirmedTwice(t *testing.T) {
	m := newMachine(t, newest())
	var err error
	if m.backend, err = kernelspace.New(&unsteady{Sim: m.Sim}, m.options); err != nil {
		t.Fatal(err)
	}
	m.apply(service(1, local(1), remote(1)))
	before := m.Dump()
	m.applied = proxy.Snapshot{}
	if err := m.try(); !errors.Is(err, backends.ErrUnavailable) {
		t.Errorf("queries that disagree: got error %v, want %v", err, backends.ErrUnavailable)
	}
	m.want("queries that disagree", strings.Split(before, "\n")...)
}

// A load balancer that was made although HNS returned an error, and could not be looked for, is the
// backend's own also after a restart.
func TestAttemptIsRemembered(t *testing.T) {
	m := newMachine(t, newest())
	m.apply()
	m.SetFault(func(c hcntest.Call) hcntest.Fault {
		switch c.Method {
		case "CreateLoadBalancer":
			return hcntest.Fault{Err: errDenied, Done: true}
		case "LoadBalancerIDs":
			return denied()
		}
		return hcntest.Fault{}
	})
	if err := m.try(service(1, local(1))); !errors.Is(err, errDenied) {
		t.Fatalf("got error %v, want %v", err, errDenied)
	}
	m.SetFault(nil)
	if len(m.LoadBalancers()) != 1 {
		t.Fatal("got no load balancer, so the test shows nothing")
	}
	m.restart()
	m.apply()
	m.want("no Service")
}

// However many objects cannot be deleted, the error that says so names only some.
func TestUnfinishedIsShort(t *testing.T) {
	m := newMachine(t, newest())
	m.apply(services(200)...)
	m.fail(-1, denied(), "DeleteLoadBalancer")
	m.apply()
	text := fmt.Sprint(m.problems())
	if n := strings.Count(text, "\n"); n != 20 || !strings.Contains(text, "780 more objects") {
		t.Errorf("got %d lines, want 21, the last one with the number of the others:\n%s", n+1, text)
	}
}

// filled is an HNS that chooses a source address if none is given.
type filled struct{ *hcntest.Sim }

func (f filled) LoadBalancer(ctx context.Context, id string) (hcn.LoadBalancer, error) {
	b, err := f.Sim.LoadBalancer(ctx, id)
	if !b.SourceVIP.IsValid() {
		b.SourceVIP = nodeAddr
	}
	return b, err
}

// Without source addresses in the options, HNS chooses: its choice is no difference, or load
// balancers would be made again with each list.
func TestSourceAddressIsHNSsChoice(t *testing.T) {
	m := newMachine(t, newest())
	m.options.SourceVIPs = nil
	m.options.HealthChecks = kernelspace.HealthChecks{Endpoint: "cbr0", Port: 10256}
	if _, err := m.AddEndpoint(m.network, "cbr0", pod(200)); err != nil {
		t.Fatal(err)
	}
	open := func() {
		var err error
		if m.backend, err = kernelspace.New(filled{m.Sim}, m.options); err != nil {
			t.Fatal(err)
		}
	}
	open()
	all := with(service(1, local(1)), frontend(proxy.LoadBalancer, "203.0.113.1", 80))
	m.apply(all)
	m.apply(with(service(1, local(2)), frontend(proxy.LoadBalancer, "203.0.113.1", 80)))
	if n := m.Calls()["ModifyLoadBalancer"]; n != 2 {
		t.Errorf("got %d modifications, want 2 that are taken for effective", n)
	}
	m.apply(all)
	for range 2 {
		open()
		m.applied = proxy.Snapshot{}
		if n := m.writes(func() { m.apply(all) }); n != 0 {
			t.Errorf("after a restart: got %d writes, want 0", n)
		}
	}
}

// A Service whose last change failed serves as before, until it is deleted.
func TestDeletedAfterFailedChange(t *testing.T) {
	m := newMachine(t, noModify())
	p := service(1, local(1))
	m.apply(p)
	m.fail(-1, denied(), "DeleteLoadBalancer")
	if err := m.try(sticky(p)); !errors.Is(err, errDenied) {
		t.Fatalf("got error %v, want %v", err, errDenied)
	}
	m.SetFault(nil)
	m.apply()
	m.want("the Service is deleted")
}
