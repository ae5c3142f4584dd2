package proxy

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/pmap"
)

// maxNamedConflicts is how many addresses of each kind a Service's problems name.
const maxNamedConflicts = 8

// conflicts are the addresses that a Service's ports claim and other service ports own: the
// first of each kind, and their number by kind.
type conflicts struct {
	first []conflict
	count [NodePort + 1]int
}

type conflict struct {
	kind FrontendKind
	key  claimKey
}

func (c *conflicts) equal(o *conflicts) bool {
	return c.count == o.count && slices.Equal(c.first, o.first)
}

// conflicts returns the conflicts of a Service's claims.
func (s *serviceState) conflicts() (out conflicts) {
	for _, p := range s.ports {
		for i := range p.claims {
			if p.claims[i].owns {
				continue
			}
			kind := p.spec.kind(i)
			if out.count[kind]++; out.count[kind] <= maxNamedConflicts {
				out.first = append(out.first, conflict{kind, p.spec.claimKey(i)})
			}
		}
	}
	return out
}

// problems returns one problem for each kind and owner of the addresses in c.first.
func (c *conflicts) problems(service types.NamespacedName, owners pmap.Map[claimKey, types.NamespacedName]) (out []*Problem) {
	for kind := range FrontendKind(len(c.count)) {
		var groups []conflictGroup
		named := 0
		for _, x := range c.first {
			if x.kind == kind {
				owner, _ := owners.Get(x.key)
				groups = count(groups, x.key, owner)
				named++
			}
		}
		for i, g := range groups {
			if i == len(groups)-1 {
				g.more += c.count[kind] - named
			}
			out = append(out, g.problem(service, kind))
		}
	}
	return out
}

// conflictGroup is the first address that one owner has, and the number of further ones.
type conflictGroup struct {
	key   claimKey
	owner types.NamespacedName
	more  int
}

func count(groups []conflictGroup, key claimKey, owner types.NamespacedName) []conflictGroup {
	if i := slices.IndexFunc(groups, func(g conflictGroup) bool { return g.owner == owner }); i >= 0 {
		groups[i].more++
		return groups
	}
	return append(groups, conflictGroup{key: key, owner: owner})
}

func (g *conflictGroup) problem(service types.NamespacedName, kind FrontendKind) *Problem {
	more := ""
	if g.more > 0 {
		more = fmt.Sprintf(", and %d more are taken", g.more)
	}
	return &Problem{
		Kind:           "Service",
		NamespacedName: service,
		Field:          candidateField(kind),
		Err:            fmt.Errorf("%s already belongs to Service %s%s", g.key, g.owner, more),
	}
}

func candidateField(k FrontendKind) string {
	return [...]string{"spec.clusterIPs", "spec.externalIPs", "status.loadBalancer.ingress", "spec.ports.nodePort"}[k&3]
}

// handOver marks the old and the new owner of an address.
func (t *tracker) handOver(key claimKey, c *contest, before *portState) {
	now := c.owner.port
	t.markFrontends(before, now)
	if c.reports > 0 {
		t.problems.nameOwner(key, now)
	}
}

// reportConflicts replaces the recorded conflicts of a Service.
func (t *tracker) reportConflicts(s *serviceState, now conflicts) {
	old := s.reported
	s.reported = now
	for _, x := range now.first {
		c := t.claims.contests[x.key]
		if c.reports++; c.reports == 1 {
			t.problems.nameOwner(x.key, c.owner.port)
		}
	}
	for _, x := range old.first {
		c := t.claims.contests[x.key]
		if c.reports--; c.reports == 0 {
			t.problems.nameOwner(x.key, nil)
		}
	}
	if len(now.first) == 0 {
		t.problems.note(conflictKey(s.spec.name), nil)
		return
	}
	t.problems.note(conflictKey(s.spec.name), &finding{conflicts: now})
}
