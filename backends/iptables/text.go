package iptables

import (
	"context"
	"errors"
	"iter"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/proxy"
)

// Rules returns all rules of one IP family for a snapshot, as input for iptables-restore
// --noflush, or ip6tables-restore, on a node without such rules. If some service ports
// cannot be programmed, it returns [proxy.PortErrors] and the rules of all others.
func Rules(options Options, family v1.IPFamily, s proxy.Snapshot) (string, error) {
	o, err := options.complete()
	if err != nil {
		return "", err
	}
	if s.IsZero() || !slices.Contains(o.Families, family) {
		return "", nil
	}
	if err := xtables.CheckInterfaces(s.Node().LocalTraffic); err != nil {
		return "", err
	}
	r := newRenderer(o, family)
	p := &recorder{}
	err = backends.New(r.render, backends.Target[xtables.Key, string](p)).Apply(context.Background(), proxy.Snapshot{}, s)
	if _, some := errors.AsType[proxy.PortErrors](err); err != nil && !some {
		return "", err
	}
	return xtables.Script(p.ops), err
}

// recorder is a target without a kernel: it keeps all operations.
type recorder struct{ ops []xtables.Op }

// List implements [backends.Target].
func (*recorder) List(context.Context) iter.Seq2[xtables.Object, error] {
	return func(func(xtables.Object, error) bool) {}
}

// Commit implements [backends.Target].
func (p *recorder) Commit(_ context.Context, ops []xtables.Op) backends.Outcome {
	p.ops = append(p.ops, ops...)
	return backends.Outcome{}
}

// Abilities implements [backends.Target].
func (*recorder) Abilities() (none backends.TargetAbilities[xtables.Key, string]) { return none }
