package proxy

import (
	"fmt"
	"slices"

	"github.com/vipkit/vipkit/internal/pmap"
)

// limitCheck is CheckLimits of [Abilities].
type limitCheck func(node *Node, port *ServicePort) []*Problem

// limits holds, for each service port, the requests that the backend cannot fully honour.
type limits struct {
	ports pmap.Map[ServicePortName, *portLimits]
	// list has the problems of all ports. It is replaced, and never changed.
	list []*Problem
}

// portLimits are the limits of one service port. They are never changed.
type portLimits struct{ problems []*Problem }

// follow records that the dataplane changed from old to new. It calls CheckLimits for the
// ports that changed; the others, and limits that are equal as before, keep their Problems.
func (l *limits) follow(check limitCheck, old, new Snapshot) {
	edit := l.ports.Edit()
	if old.IsZero() || !old.Node().Equal(new.Node()) {
		old = Snapshot{} // Limits may depend on the node: all ports are checked.
		for name := range l.ports.All() {
			if _, there := new.Get(name); !there {
				edit.Delete(name)
			}
		}
	}
	for change := range new.Changes(old) {
		if change.New == nil {
			edit.Delete(change.Old.Name)
		} else {
			setLimits(edit, change.New.Name, limitsFor(check, new.Node(), change.New))
		}
	}
	now := edit.Map()
	if now == l.ports {
		return
	}
	l.ports, l.list = now, nil
	for _, p := range now.All() {
		l.list = append(l.list, p.problems...)
	}
}

// limitsFor returns the limits of a port. It reports a panic as a limit: a bug that one
// Service triggers must not end the agent, nor hide the limits of other Services.
func limitsFor(check limitCheck, node *Node, port *ServicePort) (found []*Problem) {
	defer func() {
		if p := recover(); p != nil {
			found = []*Problem{{Kind: "Service", NamespacedName: port.Name.NamespacedName, Field: "spec", Reason: ServedWithLimits, Err: fmt.Errorf("limits of %v are unknown: panic: %v", port.Name, p)}}
		}
	}()
	return check(node, port)
}

// setLimits sets the limits of a port, unless they are equal to those before.
func setLimits(edit *pmap.Edit[ServicePortName, *portLimits], name ServicePortName, found []*Problem) {
	was, _ := edit.Get(name)
	switch {
	case len(found) == 0:
		edit.Delete(name)
	case was == nil || !slices.EqualFunc(was.problems, found, func(a, b *Problem) bool { return a.compare(b) == 0 }):
		edit.Set(name, &portLimits{found})
	}
}
