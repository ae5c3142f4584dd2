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
	switch k := b.kernel.(type) {
	case *kernel:
		b.inner = backends.New(b.renderer.render, faulty{k, around})
	case *local:
		b.inner = backends.New(b.renderer.renderLocal, faultyLocal{k, around})
	}
	return b, nil
}

// NewLimited gives one whose transactions may have so many bytes; zero leaves that to the
// kernel.
func NewLimited(o Options, around func(commit func() error) error, maxBatch int) (*Backend, error) {
	b, err := NewFaulty(o, around)
	if err != nil {
		return nil, err
	}
	if k, ok := b.kernel.(*kernel); ok {
		k.conn.LimitBatch(maxBatch)
	}
	return b, nil
}

type faultyLocal struct {
	*local
	around func(commit func() error) error
}

func (f faultyLocal) Commit(ctx context.Context, ops []op) error {
	return f.around(func() error { return f.local.Commit(ctx, ops) })
}

type faulty struct {
	*kernel
	around func(commit func() error) error
}

func (f faulty) Commit(ctx context.Context, ops []op) error {
	return f.around(func() error { return f.kernel.Commit(ctx, ops) })
}
