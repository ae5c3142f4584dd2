package backendtest

import "github.com/vipkit/vipkit/backends"

// Around makes the outcome of a commit of some ops that [Config].Faulty gives to around: that of commit, or
// if around has not called it, or returns an error after it has succeeded, that error for all ops.
func Around(around func(commit func() error) error, ops int, commit func() backends.Outcome) (out backends.Outcome) {
	err := around(func() error {
		out = commit()
		return out.Err()
	})
	if err == nil || out.Err() != nil {
		return out
	}
	return backends.Stopped(0, ops, err)
}
