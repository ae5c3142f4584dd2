package backendtest

import (
	"errors"
	"maps"

	"github.com/vipkit/vipkit/backends"
)

// Around makes the outcome of a commit that [Config].Faulty gives to around. If around fails without calling
// commit, it carries out some of the first ops, and all others fail. It is for targets that may stop between
// two ops, and not for one that carries out all or none.
func Around[K backends.Key, V comparable](
	around func(commit func() error) error, ops []backends.Op[K, V], commit func([]backends.Op[K, V]) backends.Outcome,
) (out backends.Outcome) {
	called := false
	err := around(func() error {
		called, out = true, commit(ops)
		return out.Err()
	})
	if err == nil || out.Err() != nil {
		return out
	}
	done := 0
	if f, is := errors.AsType[*fault](err); is && !called {
		done = f.at % len(ops)
	}
	rest := backends.Stopped(done, len(ops), err)
	if done > 0 {
		out = commit(ops[:done])
		maps.Copy(rest.Failed, out.Failed)
		rest.Lost = out.Lost
	}
	return rest
}
