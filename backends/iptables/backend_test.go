package iptables

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// ending is a family of which every Apply ends with an error.
type ending struct {
	proxy.Backend
	err error
}

func (e ending) Apply(context.Context, proxy.Snapshot, proxy.Snapshot) error { return e.err }

type blind struct{}

func (blind) begin(context.Context)        {}
func (blind) drifted(context.Context) bool { return true }

// Where one family fails as a whole, the service ports that fail in the other one are
// named all the same, though not as the only ones.
func TestErrorsOfBothFamilies(t *testing.T) {
	name := proxy.ServicePortName{NamespacedName: types.NamespacedName{Namespace: "test", Name: "refused"}}
	known := proxy.NewSnapshot(nil)
	for _, whole := range []error{backends.ErrUnavailable, proxy.ErrDataplaneLost} {
		for _, old := range []proxy.Snapshot{{}, known} {
			b := &backend{watcher: blind{}, settings: func() error { return nil }, families: []proxy.Backend{
				ending{err: proxy.PortErrors{name: errors.New("out of the ordinary")}}, ending{err: whole},
			}}
			err := b.Apply(t.Context(), old, known)
			if !errors.Is(err, whole) || errors.As(err, new(proxy.PortErrors)) || !strings.Contains(err.Error(), "out of the ordinary") || !strings.Contains(err.Error(), "test/refused") {
				t.Errorf("from generation %d: got error %v, want %v and the ports of the other family, but as text", old.Generation(), err, whole)
			}
			if got := errors.Is(err, proxy.ErrDataplaneLost); got == old.IsZero() && !errors.Is(whole, proxy.ErrDataplaneLost) {
				t.Errorf("from generation %d: got error %v, want %v exactly where something was known", old.Generation(), err, proxy.ErrDataplaneLost)
			}
		}
	}
}
