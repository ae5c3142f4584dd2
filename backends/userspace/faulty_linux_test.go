package userspace

import (
	"context"

	"github.com/vipkit/vipkit/backends"
)

// NewFaulty gives a backend whose commits go through around.
func NewFaulty(o Options, around func(commit func() error) error) (*Backend, error) {
	b, err := New(o)
	if err != nil {
		return nil, err
	}
	b.inner = backends.New(b.renderer.render, faulty{b.kernel, around})
	return b, nil
}

type faulty struct {
	*kernel
	around func(commit func() error) error
}

func (f faulty) Commit(ctx context.Context, ops []op) error {
	return f.around(func() error { return f.kernel.Commit(ctx, ops) })
}
