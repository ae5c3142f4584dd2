package main

import (
	"context"
	"errors"
	"io"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/proxy"
)

// bench is a backend under measurement.
type bench struct {
	world    *world
	tracker  proxy.ServiceChangeTracker
	backend  measured
	snapshot proxy.Snapshot
}

// newBench makes a backend for the network namespace of the calling thread, and
// a world that nobody has been told of.
func newBench(o options) (*bench, error) {
	backend, err := openBackend(o.Backend)
	if err != nil {
		return nil, err
	}
	return &bench{
		world:   newWorld(o.Services, o.Endpoints),
		tracker: proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-0"}),
		backend: backend,
	}, nil
}

// sync brings the kernel up to date with the tracker.
func (b *bench) sync() error {
	ctx := context.Background()
	next, err := b.tracker.Next(ctx, b.snapshot)
	if err != nil {
		return err
	}
	if err := b.backend.Apply(ctx, b.snapshot, next); err != nil {
		return err
	}
	b.snapshot = next
	return nil
}

// close ends a backend that works only as long as somebody runs it.
func (b *bench) close() error {
	if c, ok := b.backend.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// measure fills in all of the report but its floor.
func measure(r *report) error {
	if err := measureOne(r); err != nil {
		return err
	}
	var err error
	if r.Elements, err = backends()[r.Backend].count(); err != nil {
		return err
	}
	return restart(r)
}

// measureOne measures one process with the backend.
func measureOne(r *report) (err error) {
	b, err := newBench(r.options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.cold(r); err != nil {
		return err
	}
	if err := b.changes(r); err != nil {
		return err
	}
	r.RSSMiB, err = peakRSS()
	return err
}

// cold measures the way from the first API object to the kernel.
func (b *bench) cold(r *report) error {
	ctx, start := context.Background(), time.Now()
	b.world.load(b.tracker)
	first, err := b.tracker.Next(ctx, proxy.Snapshot{})
	if err != nil {
		return err
	}
	r.LoadMs = milliseconds(time.Since(start))
	start = time.Now()
	if err := b.backend.Apply(ctx, proxy.Snapshot{}, first); err != nil {
		return err
	}
	r.ColdMs = milliseconds(time.Since(start))
	b.snapshot = first
	return nil
}

// changes measures changes, one by one and in a burst. They leave the world as
// replay does.
func (b *bench) changes(r *report) error {
	before := b.backend.Operations()
	replaced, err := b.replaced(r.Changes)
	if err != nil {
		return err
	}
	r.OpsPerChange = float64(b.backend.Operations()-before) / float64(r.Changes)
	scaled, err := b.scaled(r.Changes / 2)
	if err != nil {
		return err
	}
	if r.BurstMs, err = b.burst(); err != nil {
		return err
	}
	r.ChangeP50Us, r.ChangeP99Us = percentile(replaced, 50), percentile(replaced, 99)
	r.ScaleP50Us = percentile(scaled, 50)
	return nil
}

// replaced replaces one endpoint n times and gives how long each took.
func (b *bench) replaced(n int) ([]time.Duration, error) {
	var took []time.Duration
	for range n {
		d, err := b.timed(b.world.replace())
		if err != nil {
			return nil, err
		}
		took = append(took, d)
	}
	return took, nil
}

// scaled adds an endpoint and takes it off again, n times, and gives how long
// each of both took.
func (b *bench) scaled(n int) ([]time.Duration, error) {
	var took []time.Duration
	for range n {
		i := b.world.grow()
		up, err := b.timed(i)
		if err != nil {
			return nil, err
		}
		b.world.shrink(i)
		down, err := b.timed(i)
		if err != nil {
			return nil, err
		}
		took = append(took, up, down)
	}
	return took, nil
}

// burst is how many services change at once.
const burst = 1000

// burst changes many services at once, from the API objects to one commit.
func (b *bench) burst() (ms float64, err error) {
	var slices []*discoveryv1.EndpointSlice
	for _, i := range b.world.replaceMany(burst) {
		slices = append(slices, b.world.slice(i))
	}
	start := time.Now()
	for _, s := range slices {
		b.tracker.UpdateEndpointSlice(s)
	}
	err = b.sync()
	return milliseconds(time.Since(start)), err
}

// timed tells the tracker of a service's endpoints and waits for the kernel.
func (b *bench) timed(service int) (time.Duration, error) {
	slice := b.world.slice(service)
	start := time.Now()
	b.tracker.UpdateEndpointSlice(slice)
	err := b.sync()
	return time.Since(start), err
}
