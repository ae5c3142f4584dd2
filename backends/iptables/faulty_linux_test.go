package iptables

import (
	"context"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// NewFaulty gives a backend whose commits go through around.
func NewFaulty(o Options, around func(commit func() error) error) (proxy.Backend, error) {
	return newBackend(o, func(k *kernel) backends.Target[key, string] { return faulty{k, around} })
}

type faulty struct {
	*kernel
	around func(commit func() error) error
}

func (f faulty) Commit(ctx context.Context, ops []op) error {
	if err := f.begin(ctx, ops); err != nil { // before what may fail, which is to write
		return err
	}
	return f.around(func() error { return f.kernel.Commit(ctx, ops) })
}
