package xtables

import (
	"context"
	"fmt"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// Replace implements [backends.Replacer]: everything is in one commit, because each further
// one would copy the table again. That commit lists the existing chains and rules.
func (k *kernel) Replace(context.Context, proxy.Snapshot, bool) backends.Replacement[Key, string] {
	return &replacement{kernel: k}
}

// replacement changes the existing chains and rules to the wanted ones.
type replacement struct {
	kernel *kernel
	// listed is true after the first commit has listed the existing chains and rules.
	listed bool
	// adoption is nil before that, if nothing was found, and after the first commit if it
	// succeeded.
	adoption *adoption
	// counted is true after the first commit that succeeded.
	counted bool
}

// Pieces implements [backends.Replacement].
func (*replacement) Pieces() int { return 1 }

// Commit implements [backends.Replacement].
func (r *replacement) Commit(ctx context.Context, ops []Op) error {
	isFirst := !r.listed
	if err := r.list(ctx, ops); err != nil {
		return err
	}
	return r.kernel.disturb(func() error { return r.commit(ctx, ops, isFirst) })
}

func (r *replacement) commit(ctx context.Context, ops []Op, isFirst bool) error {
	var err error
	if r.adoption == nil {
		_, err = r.kernel.write(ctx, r.kernel.rewrite(ctx, ops))
	} else if err = r.adopt(ctx, ops); err == nil && isFirst {
		r.adoption = nil
	}
	if err == nil {
		r.kernel.counts.hold(ops, !r.counted)
		r.counted = true
	}
	return r.kernel.diagnose(ctx, err, isFirst)
}

// list lists the existing chains and rules, before the first commit. If that fails, the
// commit must not be tried in parts: each part would remove the rules of the others.
func (r *replacement) list(ctx context.Context, ops []Op) error {
	if r.listed {
		return nil
	}
	s, err := r.kernel.find(ctx)
	if err != nil {
		return fmt.Errorf("%w: listing rules: %w", backends.ErrUnavailable, err)
	}
	r.listed = true
	r.kernel.findFrontends(s.found)
	if len(s.found)+len(s.unreachable) == 0 {
		return nil
	}
	r.adoption = newAdoption(r.kernel.names, s.found, s.unreachable, ops)
	r.adoption.isForeign = r.kernel.programs.isForeign
	if s.unreadable {
		r.adoption.replaced = &s.ruleset
	}
	return nil
}

// adopt commits operations, as far as the chains and rules that were found need them.
func (r *replacement) adopt(ctx context.Context, requested []Op) error {
	a := r.adoption
	ops := a.plan(requested)
	if _, err := r.kernel.write(ctx, ops); err != nil {
		return err
	}
	a.record(requested, ops)
	if old := a.replaced; old != nil {
		a.replaced = nil
		return r.kernel.removeJumps(ctx, old)
	}
	return nil
}

// Finish implements [backends.Replacement]. The commit has removed what is not wanted. Only
// if it was refused and tried in parts, chains and rules of refused service ports are left,
// which Finish removes.
func (r *replacement) Finish(ctx context.Context) error {
	if r.adoption == nil {
		return nil
	}
	_, err := r.kernel.write(ctx, r.adoption.unrequested())
	return err
}
