package kernelspace_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
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

// A load balancer that may have been made, and that cannot be read at several lists, is not taken for one that was
// not made: it goes when it can be read.
func TestAttemptThatCannotBeRead(t *testing.T) {
	m := newMachine(t, newest())
	m.apply()
	n := 0
	m.SetFault(func(c hcntest.Call) hcntest.Fault {
		if c.Method == "CreateLoadBalancer" {
			n++
			return hcntest.Fault{Err: errDenied, Done: true}
		}
		if n > 0 && c.Method == "LoadBalancerIDs" {
			return denied()
		}
		return hcntest.Fault{}
	})
	if err := m.try(service(1, local(1))); err == nil {
		t.Error("a create fails: got no error, want one")
	}
	m.fail(-1, denied(), "LoadBalancer")
	for range 3 {
		m.applied = proxy.Snapshot{}
		m.apply()
	}
	m.SetFault(nil)
	m.resync()
	m.want("it can be read")
}

// recorder is an HNS that copies the state file right after it has made a load balancer, as a
// process that is killed then leaves it.
type recorder struct {
	*hcntest.Sim
	path string
	last []byte
}

func (r *recorder) CreateLoadBalancer(ctx context.Context, b hcn.LoadBalancer) (string, error) {
	id, err := r.Sim.CreateLoadBalancer(ctx, b)
	r.last, _ = os.ReadFile(r.path) // without a file, the test fails
	return id, err
}

// A process that is killed right after HNS has made a load balancer has not recorded its ID. The next
// process removes it nevertheless if its Service has gone, and leaves that of another program at the
// same address alone.
func TestKilledBeforeIDIsRecorded(t *testing.T) {
	m := newMachine(t, newest())
	m.apply()
	r := &recorder{Sim: m.Sim, path: m.options.StateFile}
	killed := func(ports ...*proxy.ServicePort) {
		var err error
		if m.backend, err = kernelspace.New(r, m.options); err != nil {
			t.Fatal(err)
		}
		m.applied = proxy.Snapshot{}
		m.apply(ports...)
		edit(t, r.path, func([]byte) []byte { return r.last })
		m.restart()
	}
	killed(service(1, local(1)))
	m.apply()
	m.want("its Service has gone")

	killed(service(1, local(1)))
	if err := m.backend.Cleanup(t.Context()); err != nil {
		t.Error(err)
	}
	m.want("after a cleanup")

	killed(service(1, local(1)))
	if n := m.writes(func() { m.apply(service(1, local(1))) }); n != 0 {
		t.Errorf("its Service is still there: got %d writes, want 0", n)
	}
	m.apply()
	id, err := m.CreateLoadBalancer(t.Context(), hcn.LoadBalancer{
		Endpoints: []string{m.ids()["10.0.0.1"]}, FrontendVIPs: []netip.Addr{clusterIP(1)},
		PortMappings: []hcn.PortMapping{{Protocol: 6, InternalPort: 8080, ExternalPort: 80}},
	})
	testenv.NoError(t, err)
	m.restart()
	m.apply()
	if _, err := m.LoadBalancer(t.Context(), id); err != nil {
		t.Errorf("another program's load balancer: got error %v, want that it stays", err)
	}
}

// Another program's load balancer that could not be deleted does not become the backend's own.
func TestNotClearedIsNotAdopted(t *testing.T) {
	m := newMachine(t, newest())
	m.apply()
	if _, err := m.CreateLoadBalancer(t.Context(), hcn.LoadBalancer{
		Endpoints: []string{m.ids()["10.0.0.1"]}, FrontendVIPs: []netip.Addr{clusterIP(1)},
		PortMappings: []hcn.PortMapping{{Protocol: 6, InternalPort: 9090, ExternalPort: 80}},
	}); err != nil {
		t.Fatal(err)
	}
	before := m.Dump()
	m.fail(-1, denied(), "DeleteLoadBalancer")
	if err := m.try(service(1, local(1))); !errors.Is(err, errDenied) {
		t.Errorf("it cannot be deleted: got error %v, want %v", err, errDenied)
	}
	m.SetFault(nil)
	m.restart()
	m.apply()
	m.want("the Service has gone", strings.Split(before, "\n")...)
}

// late is an HNS that answers a call only after its context has ended, and then makes the load
// balancer.
type late struct {
	*hcntest.Sim
	make func()
}

func (l *late) CreateLoadBalancer(ctx context.Context, b hcn.LoadBalancer) (string, error) {
	<-ctx.Done()
	l.make = func() { _, _ = l.Sim.CreateLoadBalancer(context.WithoutCancel(ctx), b) }
	return "", ctx.Err()
}

// A load balancer that HNS makes after the context of the call has ended is the backend's own.
func TestMadeAfterContextEnded(t *testing.T) {
	m := newMachine(t, newest())
	l := &late{Sim: m.Sim}
	var err error
	if m.backend, err = kernelspace.New(l, m.options); err != nil {
		t.Fatal(err)
	}
	m.apply()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := m.backend.Apply(ctx, m.applied, proxy.NewSnapshot(theNode(), service(1, local(1)))); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got error %v, want %v", err, context.DeadlineExceeded)
	}
	l.make()
	if len(m.LoadBalancers()) != 1 {
		t.Fatal("got no load balancer, so the test shows nothing")
	}
	m.restart()
	m.apply()
	m.want("no Service")
}

// hung is an HNS that does not answer any call after some time.
type hung struct {
	*hcntest.Sim
	isHung bool
}

func (h *hung) CreateLoadBalancer(ctx context.Context, _ hcn.LoadBalancer) (string, error) {
	h.isHung = true
	<-ctx.Done()
	return "", ctx.Err()
}

func (h *hung) DeleteEndpoint(ctx context.Context, id string) error {
	if h.isHung {
		<-ctx.Done()
		return ctx.Err()
	}
	return h.Sim.DeleteEndpoint(ctx, id)
}

func (h *hung) EndpointIDs(ctx context.Context, network string) ([]string, error) {
	if h.isHung {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.Sim.EndpointIDs(ctx, network)
}

func (h *hung) LoadBalancerIDs(ctx context.Context) ([]string, error) {
	if h.isHung {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.Sim.LoadBalancerIDs(ctx)
}

// If HNS does not answer, Apply ends soon after its context.
func TestHungHNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, newest())
		var err error
		if m.backend, err = kernelspace.New(&hung{Sim: m.Sim}, m.options); err != nil {
			t.Fatal(err)
		}
		m.apply()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		hanging := with(service(1, remote(1), remote(2)), frontend(proxy.ExternalIP, "203.0.113.1", 80))
		start := time.Now()
		if err := m.backend.Apply(ctx, m.applied, proxy.NewSnapshot(theNode(), hanging)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got error %v, want %v", err, context.DeadlineExceeded)
		}
		if took := time.Since(start); took > 15*time.Second {
			t.Errorf("Apply took %v, want it to end soon after its context", took)
		}
	})
}

// stuck is an HNS that, once it is asked to, answers queries of load balancers only when it is let go.
type stuck struct {
	*hcntest.Sim
	wait chan struct{} // nil for none
}

func (s *stuck) LoadBalancer(ctx context.Context, id string) (hcn.LoadBalancer, error) {
	if s.wait != nil {
		<-s.wait
	}
	return s.Sim.LoadBalancer(ctx, id)
}

// While HNS is listed, which may take long, problems and limits can be asked for, and notifications come
// in: what HNS notifies of meanwhile leads to another list.
func TestQuestionsDoNotWaitForHNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, newest())
		s := &stuck{Sim: m.Sim}
		var err error
		if m.backend, err = kernelspace.New(s, m.options); err != nil {
			t.Fatal(err)
		}
		p := service(1, local(1))
		m.apply(p)
		s.wait = make(chan struct{})
		applied, drifted := make(chan error, 1), make(chan error, 1)
		go func() { applied <- m.backend.Apply(t.Context(), proxy.Snapshot{}, m.applied) }()
		synctest.Wait()
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			m.problems()
			m.wantLimits(p)
		}()
		m.Notify(hcn.NetworksChanged)
		go func() { drifted <- m.waitDrift() }()
		synctest.Wait()
		select {
		case <-asked:
		default:
			t.Error("while HNS is listed: got no answer, want one")
		}
		close(s.wait)
		if err := <-applied; err != nil {
			t.Error(err)
		}
		if err := <-drifted; err != nil || !m.drifted() {
			t.Errorf("a notification during the list: got error %v, drift %v, want drift", err, m.drifted())
		}
		<-asked
	})
}
