package backends_test

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// namesOf returns the names of the abilities that there are.
func namesOf(a proxy.Abilities) (all []string) {
	v := reflect.ValueOf(a)
	for i := range v.NumField() {
		if !v.Field(i).IsNil() {
			all = append(all, v.Type().Field(i).Name)
		}
	}
	slices.Sort(all)
	return all
}

// calls are the names of the abilities that were called.
type calls struct {
	mu    sync.Mutex
	names map[string]bool
}

func (c *calls) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names[name] = true
}

func (c *calls) want(t *testing.T, when string, want ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.Sort(want)
	testenv.Same(t, want, slices.Sorted(maps.Keys(c.names)), "%s: abilities that were called", when)
}

// every has all abilities. Each adds its name to the calls and returns zero values.
func (c *calls) every() (a proxy.Abilities) {
	v := reflect.ValueOf(&a).Elem()
	for i := range v.NumField() {
		f := v.Field(i)
		f.Set(reflect.MakeFunc(f.Type(), func([]reflect.Value) (results []reflect.Value) {
			c.add(v.Type().Field(i).Name)
			for out := range f.Type().Outs() {
				results = append(results, reflect.Zero(out))
			}
			return results
		}))
	}
	return a
}

// tracing is a vendor's wrapper around a backend.
type tracing struct {
	proxy.Backend
	applies *int
}

func (b tracing) Apply(ctx context.Context, old, new proxy.Snapshot) error {
	*b.applies++
	return b.Backend.Apply(ctx, old, new)
}

// tracingTracker is a vendor's wrapper around a tracker.
type tracingTracker struct {
	*proxy.ServiceChangeTracker
	waits *int
}

func (s tracingTracker) Next(ctx context.Context, after proxy.Snapshot) (proxy.Snapshot, error) {
	*s.waits++
	return s.ServiceChangeTracker.Next(ctx, after)
}

// noFlows is a FlowCleaner that finds nothing.
type noFlows struct{}

func (noFlows) AddFrontends([]*proxy.ServicePort)                       {}
func (noFlows) RemoveStale(context.Context, proxy.Snapshot, bool) error { return nil }
func (noFlows) RetryDue() bool                                          { return false }

// A wrapper around a backend and one around the tracker lose nothing: what the target can do reaches
// the Runner and everyone who asks the backend, and Close reaches the target.
func TestWrappersLoseNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, called, closed := newFakeKernel(t), calls{names: map[string]bool{}}, 0
		k.able.Abilities = called.every()
		k.able.WaitDrift = func(ctx context.Context) error { called.add("WaitDrift"); <-ctx.Done(); return ctx.Err() }
		k.able.Close = func() error { closed++; return nil }
		var applies, waits int
		b := tracing{backends.New(renderFake, k), &applies}
		tracker := tracingTracker{proxy.NewServiceChangeTracker(proxy.TrackerOptions{}), &waits}
		tracker.UpdateService(objects.Service("web", "10.96.0.1", objects.Ports("80")))
		tracker.Synced()
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		r := proxy.Runner{Source: tracker, Backend: b, FlowCleaner: noFlows{}, ResyncInterval: time.Second}
		testenv.NoError(t, r.Run(ctx))
		if applies != 1 || waits < 2 {
			t.Errorf("got %d Applies and %d calls of Next through the wrappers, want 1: no resync finds drift, and 2 or more", applies, waits)
		}
		called.want(t, "by the Runner", "CheckLimits", "CheckNode", "Drifted", "FoundFrontends", "Operations", "WaitDrift")

		a := b.Abilities()
		if testenv.Same(t, namesOf(called.every()), namesOf(a), "abilities of the wrapper"); t.Failed() {
			return
		}
		testenv.NoError(t, a.CountTraffic(t.Context(), proxy.Snapshot{}, nil))
		testenv.NoError(t, a.Drain(t.Context()))
		_, _ = a.CountRules(), a.CountConnections() // the calls count
		called.want(t, "by others", namesOf(a)...)
		if err := b.Close(); err != nil || closed != 1 {
			t.Errorf("Close: got error %v, closed the target %d times, want none and once", err, closed)
		}
	})
}
