package backends

import (
	"context"
	"errors"
	"slices"

	"github.com/vipkit/vipkit/proxy"
)

// CommitBoth is for a [Target] whose Commit needs two transactions; the function commit makes
// one. If the second one fails, CommitBoth reverts the first one, even if ctx has ended. If
// that is not possible, the error wraps [proxy.ErrDataplaneLost].
func CommitBoth[K Key, V comparable](
	ctx context.Context, commit func(context.Context, []Op[K, V]) error, first, second []Op[K, V],
) error {
	if err := commit(ctx, first); err != nil {
		return err
	}
	err := commit(ctx, second)
	if err == nil {
		return nil
	}
	return Undo(ctx, commit, first, err)
}

// Undo is for a [Target] whose kernel has no transactions: it reverts operations that a Commit
// has carried out before it failed with cause, even if ctx has ended. It returns cause, or, if
// they cannot be reverted, an error that wraps [proxy.ErrDataplaneLost].
func Undo[K Key, V comparable](
	ctx context.Context, commit func(context.Context, []Op[K, V]) error, done []Op[K, V], cause error,
) error {
	if len(done) == 0 || errors.Is(cause, proxy.ErrDataplaneLost) {
		return cause
	}
	if back, possible := inverse(done); possible && commit(context.WithoutCancel(ctx), back) == nil {
		return cause
	}
	return JoinErrors(true, nil, cause)
}

// inverse returns the operations that revert ops, in order. A Replace cannot be reverted: the
// former value is not known.
func inverse[K Key, V comparable](ops []Op[K, V]) (back []Op[K, V], possible bool) {
	back = make([]Op[K, V], 0, len(ops))
	for _, o := range slices.Backward(ops) {
		switch o.Kind {
		case Add:
			o.Kind = Remove
		case Remove:
			o.Kind = Add
		case Replace:
			return nil, false
		}
		back = append(back, o)
	}
	return back, true
}
