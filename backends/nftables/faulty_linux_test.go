package nftables

import (
	"context"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/backendtest"
	"github.com/vipkit/vipkit/proxy"
)

// NewFaulty returns a backend that passes each commit to around, which may call it or fail.
func NewFaulty(options Options, around func(commit func() error) error) (proxy.Backend, error) {
	k, err := newKernel(options)
	if err != nil {
		return nil, err
	}
	return newBackend(k, faulty{k, around})
}

type faulty struct {
	*kernel
	around func(commit func() error) error
}

func (f faulty) Commit(ctx context.Context, ops []op) backends.Outcome {
	return backendtest.Around(f.around, ops, func(ops []op) backends.Outcome { return f.kernel.Commit(ctx, ops) })
}

func (f faulty) Replace(ctx context.Context, want proxy.Snapshot, must bool) backends.Replacement[key, value] {
	r := f.kernel.Replace(ctx, want, must)
	if r == nil {
		return nil
	}
	return faultyReplacement{r, f.around}
}

type faultyReplacement struct {
	backends.Replacement[key, value]
	around func(commit func() error) error
}

func (r faultyReplacement) Commit(ctx context.Context, ops []op) backends.Outcome {
	return backendtest.Around(r.around, ops, func(ops []op) backends.Outcome { return r.Replacement.Commit(ctx, ops) })
}
