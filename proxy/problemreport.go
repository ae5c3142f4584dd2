package proxy

import (
	"net/netip"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/pmap"
)

// problemReport has the problems of a snapshot. Their list is made at the first call of
// all: the text of a conflict names the owner, so that a change of the owner would otherwise
// change the texts of all Services that claim the address.
type problemReport struct {
	findings pmap.Map[problemKey, *finding]
	// ports are the ports of the snapshot, if any address has two claims.
	ports pmap.Map[ServicePortName, *ServicePort]
	once  sync.Once
	list  []*Problem
}

// report returns the problems of a snapshot with these ports, and the report of the last
// snapshot if both have the same problems.
func (t *ServiceChangeTracker) report(ports pmap.Map[ServicePortName, *ServicePort]) *problemReport {
	b, last := &t.problems, t.snapshot.problems
	moved := b.moved && ports != t.snapshot.ports
	if last != nil && !b.stale && !moved {
		return last
	}
	b.stale, b.moved = false, false
	now := &problemReport{findings: b.findings.Map()}
	if last != nil && !moved && now.equal(last) {
		b.findings = last.findings.Edit()
		return last
	}
	if len(t.claims.rivals) > 0 {
		now.ports = ports
	}
	return now
}

// equal reports whether both have the same findings, in time in the changes since last.
func (r *problemReport) equal(last *problemReport) bool {
	for c := range r.findings.Diff(last.findings) {
		if !c.Old.equal(c.New) {
			return false
		}
	}
	return true
}

// all returns the problems in order.
func (r *problemReport) all() []*Problem {
	if r == nil {
		return nil
	}
	r.once.Do(func() {
		owners := r.owners()
		r.ports = pmap.Map[ServicePortName, *ServicePort]{}
		var object problemKey
		begin := 0
		for key, f := range r.findings.All() {
			if key.compareObject(object) != 0 {
				sortProblems(r.list[begin:])
				object, begin = key, len(r.list)
			}
			r.list = append(r.list, f.problems...)
			for _, c := range f.conflicts {
				r.list = append(r.list, c.problems(key.NamespacedName, owners)...)
			}
		}
		sortProblems(r.list[begin:])
	})
	return r.list
}

// owners returns the owners of the addresses that conflicts name.
func (r *problemReport) owners() map[claimKey]types.NamespacedName {
	if r.ports.Len() == 0 {
		return nil
	}
	owners := map[claimKey]types.NamespacedName{}
	for _, f := range r.findings.All() {
		for _, c := range f.conflicts {
			for _, key := range c.keys {
				owners[key] = types.NamespacedName{}
			}
		}
	}
	note := func(name ServicePortName, addr netip.AddrPort) {
		key := claimKey{addr, name.Protocol}
		if _, named := owners[key]; named {
			owners[key] = name.NamespacedName
		}
	}
	for name, p := range r.ports.All() {
		for i := range p.Frontends {
			note(name, p.Frontends[i].Addr)
		}
	}
	for key, f := range r.findings.All() {
		for _, addr := range f.unserved {
			note(key.port, addr)
		}
	}
	return owners
}
