package proxy

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// maxNamedConflicts is how many addresses of each kind a Service's problems name.
const maxNamedConflicts = 8

// conflicts are the addresses of one kind that a Service claims and other service ports own:
// the first few, and the number of further ones.
type conflicts struct {
	kind FrontendKind
	keys []claimKey
	more int
}

func (c conflicts) equal(o conflicts) bool {
	return c.kind == o.kind && c.more == o.more && slices.Equal(c.keys, o.keys)
}

// conflicts returns the conflicts of a Service's claims; nil if it has none.
func (s *serviceState) conflicts() *finding {
	var all []conflicts
	for _, p := range s.ports {
		for i := range p.claims {
			mine := &p.claims[i]
			if mine.owns {
				continue
			}
			at := slices.IndexFunc(all, func(c conflicts) bool { return c.kind == mine.kind })
			if at < 0 {
				at, all = len(all), append(all, conflicts{kind: mine.kind})
			}
			if c := &all[at]; len(c.keys) < maxNamedConflicts {
				c.keys = append(c.keys, p.spec.claimKey(i))
			} else {
				c.more++
			}
		}
	}
	if all == nil {
		return nil
	}
	return &finding{conflicts: all}
}

// problems returns one problem for each owner of the named addresses.
func (c conflicts) problems(service types.NamespacedName, owners map[claimKey]types.NamespacedName) (out []*Problem) {
	var names []types.NamespacedName
	taken := map[types.NamespacedName][]claimKey{}
	for _, key := range c.keys {
		owner := owners[key]
		if taken[owner] == nil {
			names = append(names, owner)
		}
		taken[owner] = append(taken[owner], key)
	}
	for i, owner := range names {
		text := fmt.Sprintf("%s already belongs to Service %s", taken[owner][0], owner)
		more := len(taken[owner]) - 1
		if i == len(names)-1 {
			more += c.more
		}
		if more > 0 {
			text += fmt.Sprintf(", and %d more are taken", more)
		}
		out = append(out, &Problem{Kind: "Service", NamespacedName: service, Field: candidateField(c.kind), Reason: AddressConflict, Err: errors.New(text)})
	}
	return out
}

func candidateField(k FrontendKind) string {
	return [...]string{"spec.clusterIPs", "spec.externalIPs", "status.loadBalancer.ingress", "spec.ports.nodePort"}[k]
}

// handOver marks the old and the new owner of an address.
func (t *ServiceChangeTracker) handOver(before, now *portState) {
	t.markFrontends(before, now)
	if before.service.spec.name != now.service.spec.name {
		t.problems.moved = true
	}
}
