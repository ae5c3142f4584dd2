package iptables

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// Rules gives all rules of one IP family for a snapshot, as the input that makes
// them where there are none: for iptables-restore --noflush, or ip6tables-restore.
// Service ports that cannot be programmed are its error, [proxy.PortErrors], beside
// the rules of all others.
func Rules(options Options, family v1.IPFamily, s proxy.Snapshot) (string, error) {
	o, err := options.complete()
	if err != nil {
		return "", err
	}
	if s.IsZero() || !slices.Contains(o.Families, family) {
		return "", nil
	}
	r := newRenderer(o, family)
	r.remembers = o.AffinityClients
	p := &paper{renderer: r}
	err = backends.New(r.render, backends.Target[key, string](p)).Apply(context.Background(), proxy.Snapshot{}, s)
	if _, some := errors.AsType[proxy.PortErrors](err); err != nil && !some {
		return "", err
	}
	script, failed := newScript(p.ops)
	if failed != nil {
		return "", fmt.Errorf("iptables: %w", failed)
	}
	return string(script.text), err
}

// paper is an edge without a kernel behind it: it keeps all that is written.
type paper struct {
	renderer *renderer
	ops      []op
}

// List implements [backends.Target].
func (*paper) List(context.Context) iter.Seq2[object, error] {
	return func(func(object, error) bool) {}
}

// Commit implements [backends.Target].
func (p *paper) Commit(_ context.Context, ops []op) error {
	p.ops = append(p.ops, ops...)
	return nil
}

// Check implements [backends.Checker].
func (p *paper) Check(_ *proxy.Node, port *proxy.ServicePort) error { return p.renderer.fault(port) }
