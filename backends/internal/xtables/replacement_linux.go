package xtables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// Replace implements [backends.Replacer]: everything is in one commit, because each further
// one would copy the table again. Each commit reads the existing chains and rules.
func (k *kernel) Replace(context.Context, proxy.Snapshot, bool) backends.Replacement[Key, string] {
	return &replacement{kernel: k}
}

// replacement changes the existing chains and rules to the wanted ones.
type replacement struct {
	kernel *kernel
	// begun is true after the first commit has read what exists, and whole if it succeeded: it has
	// everything. Later commits have parts of that.
	begun, whole bool
	// wanted are the objects of the parts that were committed.
	wanted map[Key]string
}

// Pieces implements [backends.Replacement].
func (*replacement) Pieces() int { return 1 }

// Commit implements [backends.Replacement].
func (r *replacement) Commit(ctx context.Context, ops []Op) error {
	k, isFirst := r.kernel, !r.begun
	e, err := k.find(ctx)
	if err != nil { // parts of the commit would fail, too
		return fmt.Errorf("%w: reading rules: %w", backends.ErrUnavailable, err)
	}
	r.begun = true
	if isFirst {
		k.findFrontends(e.chains)
	}
	return k.disturb(func() error {
		hasNone := r.wanted == nil
		err := r.commit(ctx, e, ops, isFirst)
		switch {
		case err == nil:
			k.counts.hold(ops, hasNone)
			r.whole = isFirst
		case isFirst:
			return k.diagnose(ctx, err)
		case k.programs.flavour == Legacy && isKernels(err):
			return fmt.Errorf("%w: the kernel refused the table without a reason: %w", backends.ErrExhausted, err)
		}
		return err
	})
}

func (r *replacement) commit(ctx context.Context, e *existing, ops []Op, isFirst bool) error {
	if isFirst && len(e.chains)+len(e.jumps) == 0 {
		return r.kernel.write(ctx, ops)
	}
	wanted := make(map[Key]string, len(r.wanted)+len(ops))
	maps.Copy(wanted, r.wanted)
	for i := range ops {
		if ops[i].Key.Table == refused {
			return errors.New(ops[i].Value)
		}
		wanted[ops[i].Key] = ops[i].Value
	}
	if err := r.kernel.adopt(ctx, e, wanted, !isFirst); err != nil {
		return err
	}
	r.wanted = wanted
	return nil
}

// Finish implements [backends.Replacement]. If the first commit was refused and tried in parts, it
// removes what no part wanted, such as the rules of refused service ports.
func (r *replacement) Finish(ctx context.Context) error {
	if r.whole {
		return nil
	}
	e, err := r.kernel.find(ctx)
	if err != nil {
		return err
	}
	return r.kernel.adopt(ctx, e, r.wanted, false)
}

// adopt makes the wanted chains and rules of those that exist. With keep, other own ones stay.
func (k *kernel) adopt(ctx context.Context, e *existing, wanted map[Key]string, keep bool) error {
	p := e.adopt(k.names, wanted, keep)
	removals, _ := p.removals()
	err := k.write(ctx, slices.Concat(p.ops, removals))
	if isRefusal(err) && len(removals) > 0 { // something may refer to one of these chains
		return k.adoptApart(ctx, wanted, keep)
	}
	if err != nil {
		return err
	}
	return k.removeJumps(ctx, e)
}

// adoptApart does the same after adopt was refused, perhaps when a table had been written. It removes
// chains apart from all else.
func (k *kernel) adoptApart(ctx context.Context, wanted map[Key]string, keep bool) error {
	e, err := k.find(ctx)
	if err != nil {
		return err
	}
	p := e.adopt(k.names, wanted, keep)
	if err := k.write(ctx, p.ops); err != nil {
		return err
	}
	if err := k.removeJumps(ctx, e); err != nil {
		return err
	}
	removals, _ := p.removals()
	_, err = k.removeChains(ctx, removals)
	return err
}
