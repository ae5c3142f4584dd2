package proxy

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/pmap"
)

// problemReport has the problems of a snapshot. Their list is made at the first call of
// all: the text of a conflict names the owner, so that a change of the owner would otherwise
// change the texts of all Services that claim the address.
type problemReport struct {
	findings pmap.Map[problemKey, *finding]
	owners   pmap.Map[claimKey, types.NamespacedName]
	once     sync.Once
	list     []*Problem
}

// report returns the current problems; last itself if it has the same.
func (b *problemStore) report(last *problemReport) *problemReport {
	if last != nil && !b.stale {
		return last
	}
	b.stale = false
	now := &problemReport{findings: b.findings.Map(), owners: b.owners.Map()}
	if last != nil && now.equal(last) {
		b.findings, b.owners = last.findings.Edit(), last.owners.Edit()
		return last
	}
	return now
}

// equal reports whether both have the same problems, in time in the changes since last.
func (r *problemReport) equal(last *problemReport) bool {
	for range r.owners.Diff(last.owners) {
		return false
	}
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
		var object problemKey
		begin := 0
		for key, f := range r.findings.All() {
			if key.compareObject(object) != 0 {
				sortProblems(r.list[begin:])
				object, begin = key, len(r.list)
			}
			r.list = append(r.list, f.problems...)
			r.list = append(r.list, f.conflicts.problems(key.NamespacedName, r.owners)...)
		}
		sortProblems(r.list[begin:])
	})
	return r.list
}
