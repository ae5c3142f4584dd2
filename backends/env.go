package backends

import (
	"reflect"

	"github.com/vipkit/vipkit/proxy"
)

// Env is the world for which a service port is rendered. Objects depend on it and on the port alone.
type Env struct {
	// Node is the node of the snapshot. Without one, as in the zero snapshot, nothing is rendered.
	Node *proxy.Node
	// Facts are what Facts of the target's [TargetAbilities] has returned; nil if the target lacks that ability.
	Facts any
}

// look returns the world for which a snapshot is applied: the same one as before if it is equal.
func (r *reconciler[K, V]) look(want proxy.Snapshot) *Env {
	var facts any
	if r.able.Facts != nil {
		facts = r.able.Facts(want)
	}
	if r.env != nil && r.env.Node.Equal(want.Node()) && reflect.DeepEqual(r.env.Facts, facts) {
		return r.env
	}
	return &Env{want.Node(), facts}
}
