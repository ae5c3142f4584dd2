package backendtest

import (
	"context"
	"errors"
	"iter"
	"testing"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// name is an object for each service port.
type name string

func (name) Rank() int    { return 0 }
func (name) Shared() bool { return false }

type named = backends.Object[name, struct{}]

// anything is a target that accepts everything.
type anything struct{}

func (anything) List(context.Context) iter.Seq2[named, error] {
	return func(func(named, error) bool) {}
}

func (anything) Commit(context.Context, []backends.Op[name, struct{}]) backends.Outcome {
	return backends.Outcome{}
}

func (anything) Abilities() (none backends.TargetAbilities[name, struct{}]) { return none }

// The engine of backends reports each unservable port, whatever the target accepts, and no other.
func TestUnservables(t *testing.T) {
	render := func(_ backends.Env, port *proxy.ServicePort, to []named) []named {
		if port == nil {
			return to
		}
		return append(to, named{Key: name(port.Name.String())})
	}
	all := append(unservables(), handMade("good", 99, "10.0.0.5"))
	err := backends.New(render, anything{}).Apply(t.Context(), proxy.Snapshot{}, proxy.NewSnapshot(&proxy.Node{}, all...))
	failed, _ := errors.AsType[proxy.PortErrors](err)
	for _, p := range unservables() {
		if failed[p.Name] == nil {
			t.Errorf("Apply: got no error for %s, want one", p.Name)
		}
	}
	if len(failed) != len(unservables()) {
		t.Errorf("Apply: got errors for %d service ports, want %d: %v", len(failed), len(unservables()), failed)
	}
}
