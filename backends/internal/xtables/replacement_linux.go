package xtables

import (
	"context"
	"fmt"
	"maps"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// Replace is Replace of [backends.TargetAbilities]: everything is in one commit, because each further
// one would copy the table again. It reads the existing chains and rules.
func (k *kernel) Replace(context.Context, proxy.Snapshot, bool) backends.Replacement[Key, string] {
	return &replacement{kernel: k}
}

// replacement changes the existing chains and rules to the wanted ones. If the first commit, which has
// everything, is refused, later commits have parts of that: they only try whether these are accepted, and
// Finish writes the accepted ones.
type replacement struct {
	kernel *kernel
	// started is true after the first commit, and whole if it succeeded.
	started, whole bool
	// keeps is true if the kernel refused a part without a reason, such as a lack of memory: then existing
	// rules stay.
	keeps bool
	// accepted are the operations of parts, and exist the chains that parts need not make.
	accepted []Op
	exist    saved
}

// Pieces implements [backends.Replacement].
func (*replacement) Pieces() int { return 1 }

// Commit implements [backends.Replacement].
func (r *replacement) Commit(ctx context.Context, ops []Op) backends.Outcome {
	return backends.PartialOutcome(0, len(ops), r.commit(ctx, ops))
}

func (r *replacement) commit(ctx context.Context, ops []Op) error {
	k := r.kernel
	if r.started {
		err := r.try(ctx, ops)
		r.keeps = r.keeps || k.programs.flavour == Legacy && isKernels(err)
		return err
	}
	r.started = true
	woken, err := k.native.wake(ctx)
	if err != nil {
		return fmt.Errorf("%w: waking dormant tables: %w", backends.ErrUnavailable, err)
	}
	k.ops.Add(woken)
	e, err := k.find(ctx)
	if err != nil { // parts of the commit would fail, too
		return fmt.Errorf("%w: reading rules: %w", backends.ErrUnavailable, err)
	}
	k.findFrontends(e.chains)
	if err := k.load(ctx, e, ops); err != nil {
		return k.diagnose(ctx, err)
	}
	r.whole = true
	k.counts.hold(ops, true)
	return nil
}

// try tries a part.
func (r *replacement) try(ctx context.Context, ops []Op) error {
	if r.exist == nil {
		e, err := r.kernel.find(ctx)
		if err != nil {
			return fmt.Errorf("%w: reading rules: %w", backends.ErrUnavailable, err)
		}
		r.exist = e.chains
	}
	made, err := r.kernel.try(ctx, ops, r.exist)
	if err == nil {
		maps.Copy(r.exist, made)
		r.accepted = append(r.accepted, ops...)
	}
	return err
}

// try writes rules into the canaries, which no packet reaches, and makes the chains of the rules that do
// not exist. It returns those chains.
func (k *kernel) try(ctx context.Context, ops []Op, exist saved) (made saved, err error) {
	made = saved{}
	rules := map[Table][]byte{}
	var trial []Op
	for _, o := range ops {
		ref := chainRef{o.Key.Table, o.Key.Chain}
		_, exists := exist[ref]
		switch {
		case o.Key.Rule != "":
			o.Value = o.Key.Rule + "\n"
		case !exists:
			made[ref] = nil
			trial = append(trial, Op{Key: ref.key()})
		}
		rules[ref.table] = append(rules[ref.table], o.Value...)
	}
	for t, text := range rules {
		trial = append(trial, Op{Key: Key{Table: t, Chain: k.names.Canary()}, Value: string(text)})
	}
	return made, k.write(ctx, trial)
}

// Finish implements [backends.Replacement].
func (r *replacement) Finish(ctx context.Context) error {
	if r.whole {
		return nil
	}
	k := r.kernel
	e, err := k.find(ctx)
	if err != nil {
		return err
	}
	if r.keeps {
		err = k.adopt(ctx, e, r.accepted, true)
	} else {
		err = k.load(ctx, e, r.accepted)
	}
	switch {
	case err == nil:
		k.counts.hold(r.accepted, true)
	case isRefusal(err):
		err = fmt.Errorf("%w: the existing objects stay in effect: parts of the new ones that are accepted alone are refused together: %w", backends.ErrUnavailable, err)
	}
	return err
}

// load makes the wanted objects of what exists. If that is refused, the programs may have listed less than there
// is: then it reads nf_tables itself.
func (k *kernel) load(ctx context.Context, e *existing, wanted []Op) error {
	refusal := k.adopt(ctx, e, wanted, false)
	if !isRefusal(refusal) {
		return refusal
	}
	e, err := k.reread(ctx)
	if err != nil {
		return err
	}
	if len(e.chains)+len(e.jumps) == 0 { // there is nothing that may be in the way
		return refusal
	}
	return k.adopt(ctx, e, wanted, false)
}

// adopt makes the wanted objects of what exists; if adds is set, it only adds objects. Unwanted chains are removed last
// and apart, because something may refer to one of them: then it stays, empty.
func (k *kernel) adopt(ctx context.Context, e *existing, wanted []Op, adds bool) error {
	ops, unwanted := e.plan(k.names, wanted, adds)
	if err := k.write(ctx, ops); err != nil {
		return err
	}
	if err := k.native.removeJumps(ctx, e.handles); err != nil {
		return err
	}
	if err := k.removeChains(ctx, e, unwanted); !isRefusal(err) {
		return err
	}
	return nil
}
