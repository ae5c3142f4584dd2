package hcntest_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

var podAddr, nodeAddr = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("172.18.0.2")

func Example() {
	ctx := context.Background()
	hns := hcntest.New(hcn.Version{Major: 16}, nodeAddr)
	network := hns.AddNetwork(hcn.Network{Name: "l2bridge0", Type: "L2Bridge"})
	pod, _ := hns.AddEndpoint(network, "pod", podAddr)
	_, err := hns.CreateLoadBalancer(ctx, hcn.LoadBalancer{
		Endpoints:    []string{pod},
		FrontendVIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		PortMappings: []hcn.PortMapping{{Protocol: 6, InternalPort: 8080, ExternalPort: 80}},
	})
	fmt.Println(hns.Dump(), err)
	hns.SetFault(func(c hcntest.Call) hcntest.Fault {
		return hcntest.Fault{Err: &hcn.Error{Op: "Hcn" + c.Method, Code: hcn.CodeManagerStopped}}
	})
	_, err = hns.LoadBalancerIDs(ctx)
	fmt.Println(err)
	// Output:
	// load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 to local 10.0.0.1 <nil>
	// HcnLoadBalancerIDs: error 0x803b0020: HNS is not running
}

// newSim makes a service with one pod.
func newSim(t *testing.T, version hcn.Version) (hns *hcntest.Sim, network, pod string) {
	hns = hcntest.New(version, nodeAddr)
	network = hns.AddNetwork(hcn.Network{Name: "n", Type: "L2Bridge"})
	pod, err := hns.AddEndpoint(network, "pod", podAddr)
	testenv.NoError(t, err)
	return hns, network, pod
}

func balancer(vip string, port uint16, endpoints ...string) hcn.LoadBalancer {
	b := hcn.LoadBalancer{Endpoints: endpoints, PortMappings: []hcn.PortMapping{{Protocol: 6, InternalPort: 8080, ExternalPort: port}}}
	if vip != "" {
		b.FrontendVIPs = []netip.Addr{netip.MustParseAddr(vip)}
	}
	return b
}

// The service refuses what leaves it in a bad state, and what its version cannot do.
func TestRefusals(t *testing.T) {
	ctx := t.Context()
	hns, network, pod := newSim(t, hcn.Version{Major: 9, Minor: 2})
	id, err := hns.CreateLoadBalancer(ctx, balancer("10.96.0.1", 80, pod))
	testenv.NoError(t, err)
	dsr, sticky, second := balancer("10.96.0.2", 80, pod), balancer("10.96.0.2", 80, pod), balancer("10.96.0.2", 80, pod, pod)
	dsr.Flags = hcn.DSR
	sticky.PortMappings[0].Distribution = hcn.BySource
	create := func(b hcn.LoadBalancer) error {
		_, err := hns.CreateLoadBalancer(ctx, b)
		return err
	}
	_, again := hns.AddEndpoint(network, "second", podAddr)
	for what, c := range map[string]struct {
		err  error
		code uint32
	}{
		"no endpoints":                   {create(balancer("10.96.0.2", 80)), hcn.CodeInvalidParameter},
		"an endpoint twice":              {create(second), hcn.CodeInvalidParameter},
		"an endpoint that is not there":  {create(balancer("10.96.0.2", 80, "?")), hcn.CodeEndpointNotFound},
		"the same address and port":      {create(balancer("10.96.0.1", 80, pod)), hcn.CodePortExists},
		"DSR":                            {create(dsr), hcn.CodeUnsupported},
		"affinity":                       {create(sticky), hcn.CodeUnsupported},
		"modify":                         {hns.ModifyLoadBalancer(ctx, hcn.LoadBalancer{ID: id}), hcn.CodeNotImplemented},
		"delete what is not there":       {hns.DeleteLoadBalancer(ctx, "?"), hcn.CodeElementNotFound},
		"two endpoints with one address": {again, hcn.CodeAlreadyExists},
	} {
		if got, ok := errors.AsType[*hcn.Error](c.err); !ok || got.Code != c.code {
			t.Errorf("%s: got error %v, want code %#x", what, c.err, c.code)
		}
	}
	if v := hns.Violations(); v != nil {
		t.Errorf("violations: got %q, want none", v)
	}
	testenv.NoError(t, hns.DeleteEndpoint(ctx, pod))
	if v := hns.Violations(); len(v) != 2 { // a pod's, and in use
		t.Errorf("violations after an endpoint in use was deleted: got %q, want two", v)
	}
}

// Faults come before a call, after it, or instead of it; calls are counted whatever they return.
func TestFaults(t *testing.T) {
	ctx := t.Context()
	hns, _, pod := newSim(t, hcn.Version{Major: 16})
	fault := errors.New("fault")
	for _, c := range []struct {
		fault hcntest.Fault
		want  int // load balancers
	}{{hcntest.Fault{Err: fault}, 0}, {hcntest.Fault{Ignored: true}, 0}, {hcntest.Fault{Err: fault, Done: true}, 1}} {
		hns.SetFault(func(hcntest.Call) hcntest.Fault { return c.fault })
		_, err := hns.CreateLoadBalancer(ctx, balancer("", 30080, pod))
		if got := len(hns.LoadBalancers()); !errors.Is(err, c.fault.Err) || got != c.want {
			t.Errorf("%+v: got error %v and %d load balancers, want %d", c.fault, err, got, c.want)
		}
	}
	if diff := cmp.Diff(map[string]int{"CreateLoadBalancer": 3}, hns.Calls()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if got := hns.LoadBalancers()[0].FrontendVIPs; len(got) != 1 || got[0] != nodeAddr {
		t.Errorf("load balancer without address: got %v, want the address of the node", got)
	}
}

// Of several notifications the greatest counts; none is lost before the first Wait.
func TestNotifications(t *testing.T) {
	hns, network, _ := newSim(t, hcn.Version{Major: 16})
	hns.RemoveNetwork(network)
	hns.Notify(hcn.EndpointsChanged)
	if got, err := hns.Wait(t.Context()); got != hcn.NetworksChanged || err != nil {
		t.Errorf("Wait: got %v, %v, want %v", got, err, hcn.NetworksChanged)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := hns.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait without a notification: got error %v, want %v", err, context.Canceled)
	}
}
