package nftables

import (
	"context"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// NewFaulty gives a backend whose commits go through around.
func NewFaulty(options Options, around func(commit func() error) error) (proxy.Backend, error) {
	k, err := newKernel(options)
	if err != nil {
		return nil, err
	}
	return backends.New(k.book.render, faulty{k, around}), nil
}

type faulty struct {
	*kernel
	around func(commit func() error) error
}

func (f faulty) Commit(ctx context.Context, ops []op) error {
	return f.around(func() error { return f.kernel.Commit(ctx, ops) })
}
