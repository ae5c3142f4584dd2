package userspace

import (
	"context"
	"errors"
	"testing"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// endingWay ends a context when something is added.
type endingWay struct {
	*someWay
	end context.CancelFunc
}

func (w endingWay) add(fam nfnetlink.Family) error {
	w.end()
	return w.someWay.add(fam)
}

// A change in parts is made as a whole or not at all, whatever fails or ends when only
// the first part has been made. Where that cannot be taken back, the error says so.
func TestPartsAreOneChange(t *testing.T) {
	table := func(kind backends.OpKind) op { return op{Kind: kind, Key: key{kind: kindTable, fam: nfnetlink.IPv4}} }
	ends := op{Kind: backends.Add, Key: key{kind: kindRouting, fam: nfnetlink.IPv4}}
	refused := op{Kind: backends.Remove, Key: key{kind: kindChain, fam: nfnetlink.IPv4, name: "none"}}
	for name, c := range map[string]struct {
		first, second []op
		want          error
		stays         bool // the table
	}{
		"all is well":               {[]op{table(backends.Add)}, []op{table(backends.Add)}, nil, true},
		"the first is refused":      {[]op{refused}, []op{table(backends.Add)}, backends.ErrConflict, false},
		"the second is refused":     {[]op{table(backends.Add)}, []op{refused}, backends.ErrConflict, false},
		"so it is after a removal":  {[]op{table(backends.Add), table(backends.Remove)}, []op{refused}, backends.ErrConflict, false},
		"the context ends":          {[]op{table(backends.Add)}, []op{ends, table(backends.Add)}, context.Canceled, false},
		"nobody knows what it was":  {[]op{table(backends.Replace)}, []op{refused}, proxy.ErrDataplaneLost, true},
		"nobody knows what happens": {[]op{table(backends.Replace)}, []op{ends, table(backends.Add)}, proxy.ErrDataplaneLost, true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			k, w := kernelIn(t)
			k.routes = endingWay{w, cancel}
			err := backends.CommitBoth(ctx, k.Commit, c.first, c.second)
			isLost := errors.Is(c.want, proxy.ErrDataplaneLost)
			if !errors.Is(err, c.want) || errors.Is(err, proxy.ErrDataplaneLost) != isLost {
				t.Errorf("got error %v, want %v", err, c.want)
			}
			stays, _, err := k.exists(t.Context(), nfnetlink.IPv4)
			if err != nil || stays != c.stays {
				t.Errorf("the table is there: %t (error %v), want %t", stays, err, c.stays)
			}
		})
	}
}
