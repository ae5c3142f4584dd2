package kernelspace_test

import (
	"context"
	"errors"
	"testing"

	"github.com/vipkit/vipkit/backends/backendtest"
	"github.com/vipkit/vipkit/backends/kernelspace"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// The laws of every backend hold with the simulated HNS, of each kind of version.
func TestLaws(t *testing.T) {
	for _, version := range []hcn.Version{newest(), noModify()} {
		t.Run(version.String(), func(t *testing.T) { testLaws(t, version) })
	}
}

func testLaws(t *testing.T, version hcn.Version) {
	m := newMachine(t, version)
	for _, a := range backendtest.LocalEndpoints() {
		if _, err := m.AddEndpoint(m.network, "pod", a); err != nil && !errors.Is(err, hcn.ErrExists) {
			t.Fatal(err)
		}
	}
	open := func(t testing.TB, client hcn.Client) proxy.Backend {
		b, err := kernelspace.New(client, m.options)
		testenv.NoError(t, err)
		return b
	}
	backendtest.RunLaws(t, backendtest.LawsConfig{
		New: func(t testing.TB) proxy.Backend { return open(t, m.Sim) },
		Faulty: func(t testing.TB, around func(func() error) error) proxy.Backend {
			return open(t, faulty{m.Sim, around})
		},
		Dump: func(testing.TB) string { return m.Dump() },
		Damage: func(t testing.TB) {
			for _, b := range m.LoadBalancers() {
				testenv.NoError(t, m.DeleteLoadBalancer(t.Context(), b.ID))
			}
		},
		Unfinished: func(b proxy.Backend) bool {
			return b.Abilities().CheckNode(proxy.Snapshot{}) != nil
		},
	})
}

// faulty is an HNS whose calls that write fail, before they take effect or after it.
type faulty struct {
	*hcntest.Sim
	around func(func() error) error
}

// plainError hides that the outcome of a call is not known: HNS does not say that.
type plainError struct{ error }

// Is implements the interface of package errors.
func (e plainError) Is(target error) bool {
	return target != proxy.ErrDataplaneLost && errors.Is(e.error, target)
}

func (f faulty) run(call func() error) error {
	if err := f.around(call); errors.Is(err, proxy.ErrDataplaneLost) {
		return plainError{err}
	} else if err != nil {
		return err
	}
	return nil
}

func (f faulty) CreateEndpoint(ctx context.Context, e hcn.Endpoint) (id string, err error) {
	err = f.run(func() (err error) {
		id, err = f.Sim.CreateEndpoint(ctx, e)
		return err
	})
	return id, err
}

func (f faulty) DeleteEndpoint(ctx context.Context, id string) error {
	return f.run(func() error { return f.Sim.DeleteEndpoint(ctx, id) })
}

func (f faulty) CreateLoadBalancer(ctx context.Context, b hcn.LoadBalancer) (id string, err error) {
	err = f.run(func() (err error) {
		id, err = f.Sim.CreateLoadBalancer(ctx, b)
		return err
	})
	return id, err
}

func (f faulty) ModifyLoadBalancer(ctx context.Context, b hcn.LoadBalancer) error {
	return f.run(func() error { return f.Sim.ModifyLoadBalancer(ctx, b) })
}

func (f faulty) DeleteLoadBalancer(ctx context.Context, id string) error {
	return f.run(func() error { return f.Sim.DeleteLoadBalancer(ctx, id) })
}
