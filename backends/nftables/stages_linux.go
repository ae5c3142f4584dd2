package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// chainsAhead takes new chains, and the sets that they need, out of operations
// that make an existing frontend, or its restriction, lead somewhere else; they
// are to be committed first. For a packet that the kernel began to look at
// before a commit finds the rules of before it, but the elements of after it: in
// a chain that is as new as the element that leads there it would find no rules,
// and go on untranslated, or unrestricted.
func chainsAhead(ops []op) (first, rest []op) {
	chains, changes := false, false
	for i := range ops {
		o := &ops[i]
		chains = chains || o.Kind == backends.Add && o.Key.kind == kindChain
		changes = changes || o.Kind == backends.Replace && (o.Key.kind == kindFrontend || o.Key.kind == kindRestriction)
	}
	if !chains || !changes {
		return nil, ops
	}
	for _, o := range ops {
		if o.Kind == backends.Add && (o.Key.kind == kindTable || o.Key.kind == kindSet || o.Key.kind == kindChain) {
			first = append(first, o)
		} else {
			rest = append(rest, o)
		}
	}
	return first, rest
}

// commitBoth makes two transactions. If the second one fails, the first one is
// undone.
func (k *kernel) commitBoth(ctx context.Context, first, second []op) error {
	if err := k.commit(ctx, first); err != nil {
		return err
	}
	err := k.commit(ctx, second)
	if err == nil || errors.Is(err, proxy.ErrDataplaneLost) {
		return err
	}
	undo, possible := inverse(first)
	if possible && k.commit(context.WithoutCancel(ctx), undo) == nil {
		return err
	}
	return fmt.Errorf("%w: a part of a change was made: %w", proxy.ErrDataplaneLost, err)
}

// inverse gives the operations that undo others, in order. Of an object that was
// replaced nobody knows what it was.
func inverse(ops []op) (undo []op, possible bool) {
	undo = make([]op, 0, len(ops))
	for _, o := range slices.Backward(ops) {
		switch o.Kind {
		case backends.Add:
			o.Kind = backends.Remove
		case backends.Remove:
			o.Kind = backends.Add
		case backends.Replace:
			return nil, false
		}
		undo = append(undo, o)
	}
	return undo, true
}
