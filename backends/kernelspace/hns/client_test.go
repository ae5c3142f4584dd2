package hns

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/internal/testing/simhns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func compareAddrs() cmp.Option { return cmpopts.EquateComparable(netip.Addr{}) }

func TestEndpoints(t *testing.T) {
	m := newMachine(t)
	e := hcn.Endpoint{
		NetworkID: m.networkID, Name: "remote", Addresses: []netip.Addr{addr("10.1.0.9"), addr("fd00::9")}, MAC: "02-11-0A-01-00-09",
		Remote: true, ProviderAddress: addr("192.0.2.7"),
	}
	id, err := m.CreateEndpoint(t.Context(), e)
	testenv.NoError(t, err)
	e.ID = id
	if got, err := m.Endpoint(t.Context(), id); err != nil || !cmp.Equal(e, got, compareAddrs()) {
		t.Errorf("endpoint: error %v, (-want +got):\n%s", err, cmp.Diff(e, got, compareAddrs()))
	}
	if ids, err := m.EndpointIDs(t.Context(), m.networkID); err != nil || !slices.Equal(ids, []string{id}) {
		t.Errorf("IDs: got %v, %v, want %s", ids, err, id)
	}
	if _, err := m.CreateEndpoint(t.Context(), e); !errors.Is(err, hcn.ErrExists) {
		t.Errorf("a second one of its address: got %v, want %v", err, hcn.ErrExists)
	}
	if err := m.DeleteEndpoint(t.Context(), id); err != nil {
		t.Error(err)
	}
	if got := m.sim.Endpoints(); len(got) > 0 {
		t.Errorf("after the delete: got %v, want none", got)
	}
	for what, err := range map[string]error{
		"reading": second(m.Endpoint(t.Context(), id)), "deleting": m.DeleteEndpoint(t.Context(), id),
		"creating in no network": second(m.CreateEndpoint(t.Context(), hcn.Endpoint{NetworkID: id, Addresses: e.Addresses})),
	} {
		if !errors.Is(err, hcn.ErrNotFound) {
			t.Errorf("%s: got %v, want %v", what, err, hcn.ErrNotFound)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestLoadBalancers(t *testing.T) {
	m := newMachine(t)
	first, other := m.endpoint(t, "10.1.0.9"), m.endpoint(t, "10.1.0.10")
	b := balancer(first, 80)
	id, err := m.CreateLoadBalancer(t.Context(), b)
	testenv.NoError(t, err)
	b.ID = id
	if got, err := m.LoadBalancer(t.Context(), id); err != nil || !cmp.Equal(b, got, compareAddrs()) {
		t.Errorf("load balancer: error %v, (-want +got):\n%s", err, cmp.Diff(b, got, compareAddrs()))
	}
	if _, err := m.CreateLoadBalancer(t.Context(), b); !errors.Is(err, hcn.ErrExists) {
		t.Errorf("a second one of its port: got %v, want %v", err, hcn.ErrExists)
	}
	b.Endpoints = []string{other}
	testenv.NoError(t, m.ModifyLoadBalancer(t.Context(), b))
	if got := m.sim.LoadBalancers(); len(got) != 1 || !got[0].Equal(&b) || got[0].ID != id {
		t.Errorf("after the change: got %v, want %v", got, b)
	}
	if ids, err := m.LoadBalancerIDs(t.Context()); err != nil || !slices.Equal(ids, []string{id}) {
		t.Errorf("IDs: got %v, %v, want %s", ids, err, id)
	}
	m.deletes(t, b)
}

// deletes deletes the only load balancer: it is not found afterwards.
func (m *machine) deletes(t *testing.T, b hcn.LoadBalancer) {
	t.Helper()
	id := b.ID
	if err := m.DeleteLoadBalancer(t.Context(), id); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"reading": second(m.LoadBalancer(t.Context(), id)), "changing": m.ModifyLoadBalancer(t.Context(), b), "deleting": m.DeleteLoadBalancer(t.Context(), id),
	} {
		if !errors.Is(err, hcn.ErrNotFound) {
			t.Errorf("%s: got %v, want %v", what, err, hcn.ErrNotFound)
		}
	}
	if ids, err := m.LoadBalancerIDs(t.Context()); err != nil || len(ids) > 0 {
		t.Errorf("IDs: got %v, %v, want none", ids, err)
	}
}

func TestHost(t *testing.T) {
	m := newMachine(t)
	if v, err := m.Version(t.Context()); v != (hcn.Version{Major: 15, Minor: 5}) || err != nil {
		t.Errorf("version: got %v, %v, want 15.5", v, err)
	}
	id := m.sim.AddNetwork(hcn.Network{
		Name: "vxlan0", Type: "Overlay",
		RemoteSubnets: []hcn.RemoteSubnet{{Prefix: netip.MustParsePrefix("10.1.2.0/24"), ProviderAddress: addr("192.0.2.7")}},
	})
	n, err := m.Network(t.Context(), "vxlan0")
	if err != nil || n.ID != id || !n.IsOverlay() || len(n.RemoteSubnets) != 1 {
		t.Errorf("network: got %+v, %v, want ID %s, overlay, one remote subnet", n, err, id)
	}
	if _, err := m.Network(t.Context(), "cbr1"); !errors.Is(err, hcn.ErrNotFound) {
		t.Errorf("no network: got %v, want %v", err, hcn.ErrNotFound)
	}
	// A query that fails is not the absence of the network.
	m.sim.SetFault(func(hcntest.Call) hcntest.Fault {
		return hcntest.Fault{Err: &hcn.Error{Op: "op", Code: hcn.CodeAccessDenied}}
	})
	if _, err := m.Network(t.Context(), "cbr0"); err == nil || errors.Is(err, hcn.ErrNotFound) {
		t.Errorf("failed list: got %v, want another error than %v", err, hcn.ErrNotFound)
	}
	m.sim.SetFault(nil)
	// It vanishes between the list and the query.
	m.service.SetFault(func(c simhns.Call) (simhns.Reply, bool) {
		return simhns.Reply{Code: hcn.CodeNetworkNotFound}, c.Function == "HcnOpenNetwork"
	})
	if _, err := m.Network(t.Context(), "cbr0"); !errors.Is(err, hcn.ErrNotFound) {
		t.Errorf("vanished network: got %v, want %v", err, hcn.ErrNotFound)
	}
}

// methods returns each method, called for an object that exists, by the functions that it calls.
func (m *machine) methods(t *testing.T) map[string]func(ctx context.Context) error {
	t.Helper()
	e, gone := m.endpoint(t, "10.1.0.9"), m.endpoint(t, "10.1.0.10")
	b := balancer(e, 80)
	var err error
	if b.ID, err = m.CreateLoadBalancer(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	temporary, err := m.CreateLoadBalancer(t.Context(), balancer(e, 81))
	testenv.NoError(t, err)
	m.service.Functions()
	return map[string]func(context.Context) error{
		"HNSCall GET /globals/version": func(ctx context.Context) error { return second(m.Version(ctx)) },
		"HcnEnumerateNetworks HcnOpenNetwork HcnQueryNetworkProperties HcnCloseNetwork": func(ctx context.Context) error {
			return second(m.Network(ctx, "cbr0"))
		},
		"HcnEnumerateEndpoints":     func(ctx context.Context) error { return second(m.EndpointIDs(ctx, m.networkID)) },
		"HcnEnumerateLoadBalancers": func(ctx context.Context) error { return second(m.LoadBalancerIDs(ctx)) },
		"HcnOpenEndpoint HcnQueryEndpointProperties HcnCloseEndpoint": func(ctx context.Context) error {
			return second(m.Endpoint(ctx, e))
		},
		"HcnOpenLoadBalancer HcnQueryLoadBalancerProperties HcnCloseLoadBalancer": func(ctx context.Context) error {
			return second(m.LoadBalancer(ctx, b.ID))
		},
		"HcnOpenNetwork HcnCreateEndpoint HcnQueryEndpointProperties HcnCloseEndpoint HcnCloseNetwork": func(ctx context.Context) error {
			return second(m.CreateEndpoint(ctx, hcn.Endpoint{NetworkID: m.networkID, Addresses: []netip.Addr{addr("10.1.0.11")}, Remote: true}))
		},
		"HcnCreateLoadBalancer HcnQueryLoadBalancerProperties HcnCloseLoadBalancer": func(ctx context.Context) error {
			return second(m.CreateLoadBalancer(ctx, balancer(e, 82)))
		},
		"HcnOpenLoadBalancer HcnModifyLoadBalancer HcnCloseLoadBalancer": func(ctx context.Context) error { return m.ModifyLoadBalancer(ctx, b) },
		"HcnDeleteEndpoint":     func(ctx context.Context) error { return m.DeleteEndpoint(ctx, gone) },
		"HcnDeleteLoadBalancer": func(ctx context.Context) error { return m.DeleteLoadBalancer(ctx, temporary) },
	}
}

// Each method calls what it must, and nothing else.
func TestFunctions(t *testing.T) {
	m := newMachine(t)
	for want, method := range m.methods(t) {
		if err := method(t.Context()); err != nil {
			t.Errorf("%s: %v", want, err)
		}
		if got := strings.Join(m.service.Functions(), " "); got != want {
			t.Errorf("functions: got %s, want %s", got, want)
		}
	}
}

// Whichever function fails, and in whichever way, the error says so and no handle stays open.
func TestEachFunctionFails(t *testing.T) {
	for functions := range newMachine(t).methods(t) {
		for function := range strings.SplitSeq(functions, " ") {
			if strings.HasPrefix(function, "HcnClose") || !strings.HasPrefix(function, "Hcn") {
				continue
			}
			for _, reply := range []simhns.Reply{
				{Code: hcn.CodeAccessDenied, Record: `{"Error":"denied"}`},
				{Code: hcn.CodeManagerStopped},
				{Record: `{"Error":"with S_OK"}`},
				{Code: hcn.CodeInvalidParameter},
			} {
				t.Run(function, func(t *testing.T) {
					m := newMachine(t)
					method := m.methods(t)[functions]
					m.service.SetFault(func(c simhns.Call) (simhns.Reply, bool) { return reply, c.Function == function })
					err := method(t.Context())
					var got *hcn.Error
					if strings.Contains(functions, "HcnCreate") && strings.HasPrefix(function, "HcnQuery") {
						// The object exists, so nothing may say that it does not.
						if err == nil || errors.As(err, &got) || !strings.Contains(err.Error(), function) {
							t.Errorf("with %+v: got %v, want an error of no meaning", reply, err)
						}
						return
					}
					if !errors.As(err, &got) || got.Op != function || got.Code != reply.Code || got.Record != reply.Record {
						t.Errorf("with %+v: got %v", reply, err)
					}
				})
			}
		}
	}
}

// What HNS says may be no document of the hcnschema.
func TestUnreadableAnswers(t *testing.T) {
	m := newMachine(t)
	m.service.SetFault(func(c simhns.Call) (simhns.Reply, bool) {
		ask := strings.HasPrefix(c.Function, "HcnEnumerate") || strings.HasPrefix(c.Function, "HcnQuery") || strings.HasPrefix(c.Function, "HNSCall")
		return simhns.Reply{Text: "<html>"}, ask
	})
	for what, err := range map[string]error{
		"version": second(m.Version(t.Context())), "network": second(m.Network(t.Context(), "cbr0")),
		"endpoints": second(m.EndpointIDs(t.Context(), m.networkID)), "load balancers": second(m.LoadBalancerIDs(t.Context())),
		"new endpoint": second(m.CreateEndpoint(t.Context(), hcn.Endpoint{NetworkID: m.networkID, Addresses: []netip.Addr{addr("10.1.0.9")}})),
	} {
		if known := (*hcn.Error)(nil); err == nil || errors.As(err, &known) {
			t.Errorf("%s: got error %v, want one that is not of HNS", what, err)
		}
	}
	m.service.SetFault(func(simhns.Call) (simhns.Reply, bool) {
		return simhns.Reply{Text: `{"Success":false,"Error":"no"}`}, true
	})
	if known := (*hcn.Error)(nil); !errors.As(second(m.Version(t.Context())), &known) || known.Record != "no" {
		t.Errorf("refused version: got %v, want the record no", known)
	}
	m.service.SetFault(nil)
	for _, id := range []string{"", "1", "8f6f2a1e-0000-4000-8000-00000000000", "{8f6f2a1e-0000-4000-8000-00000000000a}", "zf6f2a1e-0000-4000-8000-00000000000a"} {
		if err := m.DeleteEndpoint(t.Context(), id); err == nil || errors.Is(err, hcn.ErrNotFound) {
			t.Errorf("deleting endpoint %q: got %v, want another error than %v", id, err, hcn.ErrNotFound)
		}
	}
}

// A version that cannot modify says so.
func TestUnsupported(t *testing.T) {
	m := newMachine(t)
	b := balancer(m.endpoint(t, "10.1.0.9"), 80)
	var err error
	if b.ID, err = m.CreateLoadBalancer(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	m.service.SetFault(func(c simhns.Call) (simhns.Reply, bool) {
		return simhns.Reply{Code: hcn.CodeNotImplemented}, c.Function == "HcnModifyLoadBalancer"
	})
	if err := m.ModifyLoadBalancer(t.Context(), b); !errors.Is(err, hcn.ErrUnsupported) {
		t.Errorf("got %v, want %v", err, hcn.ErrUnsupported)
	}
}

func TestContexts(t *testing.T) {
	m := newMachine(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for functions, method := range m.methods(t) {
		if err := method(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v, want %v", functions, err, context.Canceled)
		}
	}
	if got := m.service.Functions(); len(got) > 0 {
		t.Errorf("calls with a context that has ended: got %v, want none", got)
	}

	// HNS does not answer. Calls return with their contexts, and a later one is made when HNS
	// has answered.
	entered, answer := make(chan struct{}), make(chan struct{})
	m.service.SetFault(func(c simhns.Call) (simhns.Reply, bool) {
		if strings.HasPrefix(c.Function, "HNSCall") {
			close(entered)
			<-answer
		}
		return simhns.Reply{}, false
	})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error)
	go func() { first <- second(m.Version(ctx)) }()
	<-entered
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("a call that HNS does not answer: got %v, want %v", err, context.Canceled)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := second(m.LoadBalancerIDs(short)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call beside it: got %v, want %v", err, context.DeadlineExceeded)
	}
	close(answer)
	if err := second(m.LoadBalancerIDs(t.Context())); err != nil {
		t.Error(err)
	}
	if got, want := strings.Join(m.service.Functions(), " "), "HNSCall GET /globals/version HcnEnumerateLoadBalancers"; got != want {
		t.Errorf("functions: got %s, want %s", got, want)
	}
}
