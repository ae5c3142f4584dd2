package proxy

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/pmap"
)

// problemReport is what a snapshot knows of problems. They are put together when
// somebody asks for them: the text of a conflict names the owner, so that it would have to
// be written for all who ask for an address whenever it has another owner.
type problemReport struct {
	findings pmap.Map[problemKey, *finding]
	owners   pmap.Map[claimKey, types.NamespacedName]
	once     sync.Once
	list     []*Problem
}

// report gives what there is to say, which is last itself if that says the same.
func (b *problemBook) report(last *problemReport) *problemReport {
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

// equal costs no more than what was noted since last.
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

// all gives the problems in order.
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
