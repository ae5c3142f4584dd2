package proxy

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/pmap"
)

// Snapshot has all service ports of a node at one moment, in name order. It is
// immutable. Snapshots of one tracker share what did not change between them, so
// keeping an old one is cheap, and comparing two costs no more than their
// differences. The zero Snapshot means that nothing is known.
//
// Any number of goroutines may read a Snapshot. Two cannot be compared by ==.
type Snapshot struct {
	generation uint64
	node       *Node
	ports      pmap.Map[ServicePortName, *ServicePort]
	problems   *problemReport
	received   *received
}

// Change is one difference between two snapshots.
type Change struct {
	// Old is the port before, nil if it was added; New is the port now, nil if it was
	// removed.
	Old, New *ServicePort
}

// NewSnapshot makes a snapshot of generation 1 by hand, for programs that have
// no tracker. The caller must not change node and ports any more. Of two ports
// of one name the later one is kept; nil ports are ignored.
func NewSnapshot(node *Node, ports ...*ServicePort) Snapshot {
	if node == nil {
		node = &Node{}
	}
	edit := pmap.New[ServicePortName, *ServicePort]().Edit()
	for _, p := range ports {
		if p != nil {
			edit.Set(p.Name, p)
		}
	}
	return Snapshot{generation: 1, node: node, ports: edit.Map()}
}

// IsZero reports whether s is the zero Snapshot: nothing is known, which is not
// the same as no services.
func (s Snapshot) IsZero() bool { return s.node == nil }

// Generation numbers the snapshots of one tracker, from 1. The zero Snapshot
// has generation 0.
func (s Snapshot) Generation() uint64 { return s.generation }

// Node returns the node; nil for the zero Snapshot.
func (s Snapshot) Node() *Node { return s.node }

// Len returns the number of service ports.
func (s Snapshot) Len() int { return s.ports.Len() }

// Get finds a service port by name.
func (s Snapshot) Get(name ServicePortName) (*ServicePort, bool) { return s.ports.Get(name) }

// All yields the service ports in name order.
func (s Snapshot) All() iter.Seq[*ServicePort] {
	return func(yield func(*ServicePort) bool) {
		for _, p := range s.ports.All() {
			if !yield(p) {
				return
			}
		}
	}
}

// Endpoints returns the endpoints in which the two ports differ, sorted: those that only the new
// one has, and those that only the old one has. They are the endpoints that flows may go to,
// in both pools and draining; a nil port has none.
func (c Change) Endpoints() (gained, lost []netip.AddrPort) {
	before, now := c.Old.Servers(), c.New.Servers()
	for a := range now {
		if _, ok := before[a]; !ok {
			gained = append(gained, a)
		}
	}
	for a := range before {
		if _, ok := now[a]; !ok {
			lost = append(lost, a)
		}
	}
	slices.SortFunc(gained, netip.AddrPort.Compare)
	slices.SortFunc(lost, netip.AddrPort.Compare)
	return gained, lost
}

// Servers returns the endpoints that flows may go to, in both pools and draining; a nil
// port has none.
func (p *ServicePort) Servers() map[netip.AddrPort]struct{} {
	if p == nil {
		return nil
	}
	all := make(map[netip.AddrPort]struct{}, len(p.Cluster)+len(p.Draining))
	for _, list := range [...][]*endpoints.Endpoint{p.Cluster, p.Local, p.Draining} {
		for _, e := range list {
			all[e.Addr] = struct{}{}
		}
	}
	return all
}

// Changes yields, in name order, every service port that differs from since. A port
// that was changed and changed back in between, or resolved again to the same, does not
// differ. Between snapshots of one tracker it takes O(changes · log ports) time.
func (s Snapshot) Changes(since Snapshot) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		for c := range s.ports.Diff(since.ports) {
			if c.Old.Equal(c.New) {
				continue
			}
			if !yield(Change{Old: c.Old, New: c.New}) {
				return
			}
		}
	}
}

// Revert returns s with the named ports as they are in old: what a dataplane holds
// after it achieved s except for these ports.
func (s Snapshot) Revert(old Snapshot, names ...ServicePortName) Snapshot {
	edit := s.ports.Edit()
	for _, n := range names {
		if p, ok := old.Get(n); ok {
			edit.Set(n, p)
		} else {
			edit.Delete(n)
		}
	}
	s.ports = edit.Map()
	return s
}

// Problems yields what cannot be honoured in the API objects, in the order of kind, object
// and field. The first call takes time in the number of problems; further ones, for snapshots
// with the same problems, do not. Of the addresses that a Service claims and others own, the
// first few of each kind are named, and the rest counted.
func (s Snapshot) Problems() iter.Seq[*Problem] { return slices.Values(s.problems.all()) }
