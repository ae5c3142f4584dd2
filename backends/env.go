package backends

import (
	"reflect"

	"github.com/vipkit/vipkit/proxy"
)

// Env is the world for which a service port is rendered. Objects depend on it and on the port alone.
type Env struct {
	// Node is the node of the snapshot, never nil.
	Node *proxy.Node
	// Facts are what the [Target] has found outside of the snapshot, such as features of the kernel; nil unless
	// it is a [FactFinder].
	Facts any
}

// FactFinder is an optional ability of a [Target] whose objects depend on more than the snapshot.
type FactFinder interface {
	// Facts returns what [Render] needs to know beside the node and the service port, to apply a snapshot.
	// Facts that are not deeply equal to those of the Apply before have everything rendered again, as another
	// node has. Nobody changes what was returned. It is called before anything is rendered, after List or
	// Replace if one of them is called. It must cost little.
	Facts(want proxy.Snapshot) any
}

// look returns the world for which a snapshot is applied: the same one as before if it is equal.
func (r *reconciler[K, V]) look(want proxy.Snapshot) *Env {
	var facts any
	if f, can := r.target.(FactFinder); can {
		facts = f.Facts(want)
	}
	if r.env != nil && r.env.Node.Equal(want.Node()) && reflect.DeepEqual(r.env.Facts, facts) {
		return r.env
	}
	return &Env{want.Node(), facts}
}
