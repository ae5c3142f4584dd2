package kernelspace_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/backends/kernelspace"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/proxy"
)

// A frontend and a health check with one address and port do not delete each other: the frontend is served, and
// the health check is missing. A port whose own frontend is there has no health check.
func TestHealthCheckAtFrontend(t *testing.T) {
	m := newMachine(t, newest())
	m.options.HealthChecks = kernelspace.HealthChecks{Endpoint: "cbr0", Port: 10256}
	if _, err := m.AddEndpoint(m.network, "cbr0", netip.MustParseAddr("10.0.0.200")); err != nil {
		t.Fatal(err)
	}
	m.restart()
	first := with(service(1, local(1)), frontend(proxy.LoadBalancer, "203.0.113.1", 80))
	second := with(service(2, local(1)), frontend(proxy.LoadBalancer, "203.0.113.1", 10256))
	for i := range 3 {
		m.applied = proxy.Snapshot{}
		if n := m.writes(func() { m.apply(first, second) }); i > 0 && n != 0 {
			t.Errorf("list %d: got %d writes, want none", i, n)
		}
		if p := errors.Join(m.problems()...); p == nil || !strings.Contains(p.Error(), "load balancer of health checks 203.0.113.1:10256") {
			t.Errorf("list %d: got problems %v, want one that names the health check", i, p)
		}
	}
	m.apply(second)
	m.want("alone",
		"load balancer 10.96.0.2:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1",
		"load balancer 203.0.113.1:10256/6->8080 distribution 0 flags 16 flags 0 source 172.18.0.2 to local 10.0.0.1")
}

// A load balancer of health checks that HNS refuses, as where the proxy's own health server has the port, takes
// nothing from the Service: it is served, the node has a problem, and the load balancer comes when HNS makes it.
func TestHealthCheckIsRefused(t *testing.T) {
	taken := hcntest.Fault{Err: &hcn.Error{Op: "HcnCreateLoadBalancer", Code: hcn.CodePortExists}}
	for _, version := range []hcn.Version{newest(), noModify()} {
		m := newMachine(t, version)
		m.options.HealthChecks = kernelspace.HealthChecks{Endpoint: "cbr0", Port: 10256}
		if _, err := m.AddEndpoint(m.network, "cbr0", netip.MustParseAddr("10.0.0.200")); err != nil {
			t.Fatal(err)
		}
		m.restart()
		p := with(service(1, local(1)), frontend(proxy.LoadBalancer, "203.0.113.1", 80))
		n := 0
		m.SetFault(func(c hcntest.Call) hcntest.Fault {
			if c.Method == "CreateLoadBalancer" {
				n++
			}
			if n > 2 && c.Method == "CreateLoadBalancer" {
				return taken
			}
			return hcntest.Fault{}
		})
		m.apply(p)
		served := []string{
			"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1",
			"load balancer 203.0.113.1:80/6->8080 distribution 0 flags 16 flags 0 source 172.18.0.2 to local 10.0.0.1",
		}
		m.want("refused", served...)
		if p := m.problems(); len(p) != 1 || !strings.Contains(p[0].Error(), "load balancer of health checks 203.0.113.1:10256") {
			t.Errorf("got problems %v, want one of the health check", p)
		}
		m.SetFault(nil)
		m.resync()
		m.want("HNS makes it", append(served, "load balancer 203.0.113.1:10256/6->10256 distribution 0 flags 0 flags 0 to local 10.0.0.200")...)
		if p := m.problems(); len(p) != 0 {
			t.Errorf("got problems %v, want none", p)
		}
		m.apply()
		m.want("no Service")
	}
}
