package xtables

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// failingFamily is a family whose Apply always returns an error.
type failingFamily struct {
	proxy.Backend
	err error
}

func (e failingFamily) Apply(context.Context, proxy.Snapshot, proxy.Snapshot) error { return e.err }

// If one family fails as a whole, the error names the failed service ports of the other
// family as text, but is not a PortErrors, because these are not the only ones.
func TestErrorsOfBothFamilies(t *testing.T) {
	t.Parallel()
	name := proxy.ServicePortName{NamespacedName: types.NamespacedName{Namespace: "test", Name: "refused"}}
	known := proxy.NewSnapshot(nil)
	for _, whole := range []error{backends.ErrUnavailable, proxy.ErrDataplaneLost} {
		for _, old := range []proxy.Snapshot{{}, known} {
			b := &Backend{families: []proxy.Backend{
				failingFamily{err: proxy.PortErrors{name: errors.New("out of the ordinary")}}, failingFamily{err: whole},
			}}
			err := b.Apply(t.Context(), old, known)
			if !errors.Is(err, whole) || errors.As(err, new(proxy.PortErrors)) || !strings.Contains(err.Error(), "out of the ordinary") || !strings.Contains(err.Error(), "test/refused") {
				t.Errorf("from generation %d: got error %v, want %v and the ports of the other family, but as text", old.Generation(), err, whole)
			}
			if got := errors.Is(err, proxy.ErrDataplaneLost); got == old.IsZero() && !errors.Is(whole, proxy.ErrDataplaneLost) {
				t.Errorf("from generation %d: got error %v, want %v exactly if old is not zero", old.Generation(), err, proxy.ErrDataplaneLost)
			}
		}
	}
}
