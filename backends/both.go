package backends

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vipkit/vipkit/proxy"
)

// CommitBoth is for a [Target] that makes one Commit of two transactions, by a function that
// makes one. If the second one fails, the first one is taken back, even where ctx has
// ended. Where that cannot be done, the error holds [proxy.ErrDataplaneLost].
func CommitBoth[K Key, V comparable](
	ctx context.Context, commit func(context.Context, []Op[K, V]) error, first, second []Op[K, V],
) error {
	if err := commit(ctx, first); err != nil {
		return err
	}
	err := commit(ctx, second)
	if err == nil || errors.Is(err, proxy.ErrDataplaneLost) {
		return err
	}
	if back, possible := inverse(first); possible && commit(context.WithoutCancel(ctx), back) == nil {
		return err
	}
	return fmt.Errorf("%w: a part of a change was made: %w", proxy.ErrDataplaneLost, err)
}

// inverse gives the operations that take others back, in order. Of an object that was
// replaced nobody knows what it was.
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
