package userspace

import (
	"context"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/backendtest"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/userspace/internal/netfilter"
	"github.com/vipkit/vipkit/proxy"
)

// NewFaulty returns a backend whose commits pass through around.
func NewFaulty(o Options, around func(commit func() error) error) (*Backend, error) {
	b, err := New(o)
	if err != nil {
		return nil, err
	}
	if c, ok := b.capture.(*netfilter.Capture); ok {
		b.inner = backends.New(c.Render, faultyNetfilter{c, around})
	}
	return b, nil
}

// NewDisturbed returns a backend whose nf_tables transactions get faults, and have maxBatch bytes
// at most; zero leaves the limit to the kernel.
func NewDisturbed(o Options, d *stagetest.Disturbance, maxBatch int) (*Backend, error) {
	b, err := New(o)
	if err != nil {
		return nil, err
	}
	if c, ok := b.capture.(*netfilter.Capture); ok {
		d.Limit(c.Conn, maxBatch)
	}
	return b, nil
}

type faultyNetfilter struct {
	*netfilter.Capture
	around func(commit func() error) error
}

func (f faultyNetfilter) Commit(ctx context.Context, ops []backends.Op[netfilter.Key, netfilter.Value]) backends.Outcome {
	return backendtest.Around(f.around, ops, func(ops []backends.Op[netfilter.Key, netfilter.Value]) backends.Outcome {
		return f.Capture.Commit(ctx, ops)
	})
}

func (f faultyNetfilter) Replace(ctx context.Context, want proxy.Snapshot, must bool) backends.Replacement[netfilter.Key, netfilter.Value] {
	r := f.Capture.Replace(ctx, want, must)
	if r == nil {
		return nil
	}
	return faultyReplacement{r, f.around}
}

type faultyReplacement struct {
	backends.Replacement[netfilter.Key, netfilter.Value]
	around func(commit func() error) error
}

func (r faultyReplacement) Commit(ctx context.Context, ops []backends.Op[netfilter.Key, netfilter.Value]) backends.Outcome {
	return backendtest.Around(r.around, ops, func(ops []backends.Op[netfilter.Key, netfilter.Value]) backends.Outcome {
		return r.Replacement.Commit(ctx, ops)
	})
}
