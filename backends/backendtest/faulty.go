package backendtest

import (
	"context"
	"errors"
	"maps"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// Faulty returns a target for [Config].Faulty: it gives each commit of the inner target to around. If around
// fails without calling commit, the target carries out some of the first ops, and all others fail. It is for
// targets that may stop between two ops, and not for one that carries out all or none.
func Faulty[K backends.Key, V comparable](inner backends.Target[K, V], around func(commit func() error) error) backends.Target[K, V] {
	return faulty[K, V]{inner, around}
}

type faulty[K backends.Key, V comparable] struct {
	backends.Target[K, V]
	around func(commit func() error) error
}

// Commit implements [backends.Target].
func (f faulty[K, V]) Commit(ctx context.Context, ops []backends.Op[K, V]) backends.Outcome {
	return around(ctx, f.around, ops, f.Target.Commit)
}

// Abilities implements [backends.Target].
func (f faulty[K, V]) Abilities() backends.TargetAbilities[K, V] {
	a := f.Target.Abilities()
	if replace := a.Replace; replace != nil {
		a.Replace = func(ctx context.Context, want proxy.Snapshot, must bool) backends.Replacement[K, V] {
			if r := replace(ctx, want, must); r != nil {
				return faultyReplacement[K, V]{r, f.around}
			}
			return nil
		}
	}
	return a
}

type faultyReplacement[K backends.Key, V comparable] struct {
	backends.Replacement[K, V]
	around func(commit func() error) error
}

// Commit implements [backends.Replacement].
func (r faultyReplacement[K, V]) Commit(ctx context.Context, ops []backends.Op[K, V]) backends.Outcome {
	return around(ctx, r.around, ops, r.Replacement.Commit)
}

// around makes the outcome of a commit that is given to a function.
func around[K backends.Key, V comparable](
	ctx context.Context, give func(commit func() error) error, ops []backends.Op[K, V], commit func(context.Context, []backends.Op[K, V]) backends.Outcome,
) (out backends.Outcome) {
	called := false
	err := give(func() error {
		called, out = true, commit(ctx, ops)
		return out.Err()
	})
	if err == nil || out.Err() != nil {
		return out
	}
	done := 0
	if f, is := errors.AsType[*fault](err); is && !called {
		done = f.at % len(ops)
	}
	rest := backends.PartialOutcome(done, len(ops), err)
	if done > 0 {
		out = commit(ctx, ops[:done])
		maps.Copy(rest.Failed, out.Failed)
		rest.Lost = out.Lost
	}
	return rest
}
