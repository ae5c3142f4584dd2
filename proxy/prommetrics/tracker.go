package prommetrics

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
)

// tracker notes what it passes on.
type tracker struct {
	proxy.ServiceChangeTracker
	changes *changes
}

func (t tracker) UpdateService(s *v1.Service) {
	if s == nil {
		return
	}
	defer t.changes.hear(serviceKind, types.NamespacedName{Namespace: s.Namespace, Name: s.Name})()
	t.ServiceChangeTracker.UpdateService(s)
}

func (t tracker) DeleteService(name types.NamespacedName) {
	defer t.changes.hear(serviceKind, name)()
	t.ServiceChangeTracker.DeleteService(name)
}

func (t tracker) UpdateEndpointSlice(s *discoveryv1.EndpointSlice) {
	if s == nil {
		return
	}
	service := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
	var triggers []trigger
	if at, err := time.Parse(time.RFC3339Nano, s.Annotations[v1.EndpointsLastChangeTriggerTime]); err == nil {
		triggers = []trigger{{at, v1.IPFamily(s.AddressType)}}
	}
	defer t.changes.hear(sliceKind, service, triggers...)()
	t.ServiceChangeTracker.UpdateEndpointSlice(s)
}

// DeleteEndpointSlice does not know of which Service the slice was.
func (t tracker) DeleteEndpointSlice(name types.NamespacedName) {
	defer t.changes.hear(sliceKind, types.NamespacedName{})()
	t.ServiceChangeTracker.DeleteEndpointSlice(name)
}

func (t tracker) Synced() {
	t.changes.mu.Lock()
	defer t.changes.done()
	t.changes.synced = true
	t.ServiceChangeTracker.Synced()
}

// source notes what a Runner takes up.
type source struct {
	inner   proxy.Source
	metrics *Metrics
}

func (s *source) Next(ctx context.Context, after proxy.Snapshot) (proxy.Snapshot, error) {
	for {
		next, wait, err := s.poll(ctx, after)
		if wait == nil {
			return next, err
		}
		next, err = s.inner.Next(wait, after)
		switch {
		case err == nil:
			return s.taken(after, next)
		case !errors.Is(err, wait.Err()):
			return proxy.Snapshot{}, err // whether or not the wait is over by now
		case ctx.Err() != nil:
			return proxy.Snapshot{}, ctx.Err()
		}
	}
}

// poll gives a snapshot if there is one. If there is none, nothing came of what
// was heard, and the context given ends when more is heard.
func (s *source) poll(ctx context.Context, after proxy.Snapshot) (proxy.Snapshot, context.Context, error) {
	c := &s.metrics.changes
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wake != nil {
		c.wake()
		c.wake = nil
	}
	next, err := s.inner.Next(ended(), after)
	switch {
	case err == nil:
		s.take(after, next)
		return next, nil, nil
	case !errors.Is(err, context.Canceled):
		return proxy.Snapshot{}, nil, err
	case !after.IsZero():
		c.forget()
	}
	ctx, c.wake = context.WithCancel(ctx)
	return proxy.Snapshot{}, ctx, nil
}

// taken gives the snapshot to take up when next has been found: next itself, or
// one that is newer still and holds all that has been heard.
func (s *source) taken(after, next proxy.Snapshot) (proxy.Snapshot, error) {
	c := &s.metrics.changes
	c.mu.Lock()
	defer c.mu.Unlock()
	if newer, err := s.inner.Next(ended(), after); err == nil {
		next = newer
	}
	s.take(after, next)
	return next, nil
}

func (s *source) take(after, next proxy.Snapshot) {
	now := time.Now()
	s.metrics.changes.take(after, next, now)
	s.metrics.queued(now)
}

// ended is a context with which Next gives what there is and does not wait.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
