package netfilter

import (
	"context"
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// endingRouting ends a context when something is added.
type endingRouting struct {
	*fakeRouting
	end context.CancelFunc
}

func (w endingRouting) add(f v1.IPFamily) error {
	w.end()
	return w.fakeRouting.add(f)
}

// A commit in two parts is made as a whole or not at all, whatever fails or ends after the first
// part. If the first part cannot be undone, the error is proxy.ErrDataplaneLost.
func TestSplitCommitsAreAtomic(t *testing.T) {
	t.Parallel()
	table := func(kind backends.OpKind) op { return op{Kind: kind, Key: Key{kind: kindTable, fam: nfnetlink.IPv4}} }
	ends := op{Kind: backends.Add, Key: Key{kind: kindRouting, fam: nfnetlink.IPv4}}
	refuse := op{Key: Key{name: "refused"}} // stands for an operation that the kernel refuses
	for name, c := range map[string]struct {
		first, second []op
		want          error
		stays         bool // the table
	}{
		"both succeed":            {[]op{table(backends.Add)}, []op{table(backends.Add)}, nil, true},
		"first refused":           {[]op{refuse}, []op{table(backends.Add)}, backends.ErrConflict, false},
		"second refused":          {[]op{table(backends.Add)}, []op{refuse}, backends.ErrConflict, false},
		"refused after a removal": {[]op{table(backends.Add), table(backends.Remove)}, []op{refuse}, backends.ErrConflict, false},
		"context ends":            {[]op{table(backends.Add)}, []op{ends, table(backends.Add)}, context.Canceled, false},
		"refused, no undo":        {[]op{table(backends.Replace)}, []op{refuse}, proxy.ErrDataplaneLost, true},
		"context ends, no undo":   {[]op{table(backends.Replace)}, []op{ends, table(backends.Add)}, proxy.ErrDataplaneLost, true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			k, w := kernelIn(t)
			refused := refused(t, k)
			for _, ops := range [][]op{c.first, c.second} {
				if ops[0] == refuse {
					ops[0] = refused
				}
			}
			k.routes = endingRouting{w, cancel}
			err := backends.CommitBoth(ctx, k.Commit, c.first, c.second)
			isLost := errors.Is(c.want, proxy.ErrDataplaneLost)
			if !errors.Is(err, c.want) || errors.Is(err, proxy.ErrDataplaneLost) != isLost {
				t.Errorf("got error %v, want %v", err, c.want)
			}
			stays, err := k.exists(t.Context(), nfnetlink.IPv4)
			if err != nil || stays != c.stays {
				t.Errorf("table exists: got %t and error %v, want %t", stays, err, c.stays)
			}
		})
	}
}
