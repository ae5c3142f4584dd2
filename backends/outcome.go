package backends

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/vipkit/vipkit/proxy"
)

// Outcome says what became of the ops of a [Target.Commit]. The zero value says that all were carried
// out.
type Outcome struct {
	// Failed maps the index of each op that was not carried out to the reason. All other ops were
	// carried out.
	Failed map[int]error
	// Together says that the kernel refused the failed ops as one, and does not say which of them
	// it refuses: a smaller commit may succeed.
	Together bool
	// Lost, if not nil, says that the state is not known, for instance because another program changed
	// it, and why. The next Apply lists everything.
	Lost error
}

// PartialOutcome returns the outcome of a commit in transactions that carried out the first done ops, and
// refused the others with err. It sets Together. With a nil err, all ops were carried out. The state is lost if
// err wraps [proxy.ErrDataplaneLost], or if all ops were carried out before the error.
func PartialOutcome(done, all int, err error) Outcome {
	if err == nil {
		return Outcome{}
	}
	if done == all || errors.Is(err, proxy.ErrDataplaneLost) {
		return Outcome{Lost: err}
	}
	o := Outcome{Failed: make(map[int]error, all-done), Together: true}
	for i := done; i < all; i++ {
		o.Failed[i] = err
	}
	return o
}

// At translates indexes: op i of o is op indexes[i] of the result. Nil indexes change nothing.
func (o Outcome) At(indexes []int) Outcome {
	if len(o.Failed) == 0 || indexes == nil {
		return o
	}
	failed := make(map[int]error, len(o.Failed))
	for i, err := range o.Failed {
		failed[indexes[i]] = err
	}
	o.Failed = failed
	return o
}

// Partition returns ops in another order: first the ops for which is reports true. It also returns how
// many these are, and the former index of each op, for [Outcome.At].
func Partition[K Key, V comparable](ops []Op[K, V], is func(*Op[K, V]) bool) (ordered []Op[K, V], first int, indexes []int) {
	for _, want := range [...]bool{true, false} {
		for i := range ops {
			if is(&ops[i]) == want {
				ordered, indexes = append(ordered, ops[i]), append(indexes, i)
			}
		}
		if want {
			first = len(ordered)
		}
	}
	return ordered, first, indexes
}

// Each returns the outcome of ops that do carries out one by one. It tries no more of them after
// an error that says that this is useless, and removes nothing after another op has failed.
func Each[K Key, V comparable](ctx context.Context, ops []Op[K, V], do func(*Op[K, V]) error) (out Outcome) {
	var useless, missing error
	for i := range ops {
		err := useless
		if ops[i].Kind == Remove && err == nil {
			err = missing
		}
		if err == nil {
			err = do(&ops[i])
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, proxy.ErrDataplaneLost):
			return Outcome{Lost: err}
		case final(ctx, err):
			useless = err
		case ops[i].Kind != Remove:
			missing = err
		}
		if out.Failed == nil {
			out.Failed = map[int]error{}
		}
		out.Failed[i] = err
	}
	return out
}

// Err returns nil if all ops were carried out; else the first error that ends the Apply, else the first
// [ErrConflict], else the first error.
func (o Outcome) Err() (err error) {
	if o.Lost != nil {
		return asLost(o.Lost)
	}
	var conflict error
	for _, i := range slices.Sorted(maps.Keys(o.Failed)) {
		if isFinal(o.Failed[i]) {
			return o.Failed[i]
		}
		if conflict == nil && errors.Is(o.Failed[i], ErrConflict) {
			conflict = o.Failed[i]
		}
		err = cmp.Or(err, o.Failed[i])
	}
	return cmp.Or(conflict, err)
}

// asLost returns an error that wraps [proxy.ErrDataplaneLost].
func asLost(err error) error {
	if errors.Is(err, proxy.ErrDataplaneLost) {
		return err
	}
	return fmt.Errorf("%w: %w", proxy.ErrDataplaneLost, err)
}

// final reports whether dividing a commit cannot help: no single service port caused the
// error. ErrUnsupported is not final: a feature that all ports need fails with the static
// objects; otherwise single ports need it.
func final(ctx context.Context, err error) bool { return ctx.Err() != nil || isFinal(err) }

func isFinal(err error) bool {
	return errors.Is(err, ErrReplace) || errors.Is(err, ErrUnavailable) || errors.Is(err, proxy.ErrDataplaneLost)
}
