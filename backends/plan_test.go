package backends

import (
	"context"
	"iter"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// numbered is the key of one of many equal objects.
type numbered int

func (numbered) Rank() int    { return 0 }
func (numbered) Shared() bool { return false }

// accepting is a target that has nothing, and accepts everything.
type accepting struct{}

func (accepting) List(context.Context) iter.Seq2[Object[numbered, int], error] {
	return func(func(Object[numbered, int], error) bool) {}
}

func (accepting) Commit(context.Context, []Op[numbered, int]) Outcome { return Outcome{} }
func (accepting) Abilities() (none TargetAbilities[numbered, int])    { return none }

// What a first load was planned with is not kept: with many Services that is megabytes.
func TestApplyKeepsNoMemoryOfALoad(t *testing.T) {
	const objects = 1000
	r := &reconciler[numbered, int]{target: accepting{}}
	r.render = func(_ Env, port *proxy.ServicePort, to []Object[numbered, int]) []Object[numbered, int] {
		for i := range objects {
			if port != nil {
				to = append(to, Object[numbered, int]{Key: numbered(i)})
			}
		}
		return to
	}
	name := proxy.ServicePortName{Family: v1.IPv4Protocol, Protocol: v1.ProtocolTCP}
	name.Name = "web"
	if err := r.Apply(t.Context(), proxy.Snapshot{}, proxy.NewSnapshot(&proxy.Node{}, &proxy.ServicePort{Name: name})); err != nil {
		t.Fatal(err)
	}
	if r.committed != objects || cap(r.planner.current.ops)+cap(r.planner.new) > 0 {
		t.Errorf("after a load of %d objects: got %d committed, and room for %d operations and %d objects, want %d and no room",
			objects, r.committed, cap(r.planner.current.ops), cap(r.planner.new), objects)
	}
}
