package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/pmap"
)

// problemStore has the problems of all objects, by object.
type problemStore struct {
	findings *pmap.Edit[problemKey, *finding]
	// stale says that findings may differ from the findings of the last report.
	stale bool
	// moved says that since then one Service may have taken an address over from another.
	moved bool
	// nodePorts counts the node ports of IPv4 and IPv6 that Services have.
	nodePorts [2]int
}

// problemKey names an object and the subject of the problem: empty for the object's own
// fields, or one of the constants below.
type problemKey struct {
	kind string
	types.NamespacedName
	about string
	port  ServicePortName
}

const (
	aboutConflicts = "conflicts"
	aboutLimit     = "limit"
	aboutNodePorts = "node ports"
)

// Compare puts all keys of an object together, and objects in the order of problems.
func (k problemKey) Compare(o problemKey) int {
	if c := k.compareObject(o); c != 0 {
		return c
	}
	return cmp.Or(strings.Compare(k.about, o.about), k.port.Compare(o.port))
}

func (k problemKey) compareObject(o problemKey) int {
	return cmp.Or(strings.Compare(k.kind, o.kind), strings.Compare(k.Namespace, o.Namespace), strings.Compare(k.Name, o.Name))
}

func objectKey(kind string, name types.NamespacedName) problemKey {
	return problemKey{kind: kind, NamespacedName: name}
}

func conflictKey(service types.NamespacedName) problemKey {
	return problemKey{kind: "Service", NamespacedName: service, about: aboutConflicts}
}

func limitKey(name ServicePortName) problemKey {
	return problemKey{kind: "Service", NamespacedName: name.NamespacedName, about: aboutLimit, port: name}
}

// finding has the problems under one key. It is never changed.
type finding struct {
	problems []*Problem
	// conflicts become problems in problemReport.all: their text names the owners
	// of the snapshot.
	conflicts []conflicts
	// unserved are the addresses that a port owns without having a frontend there.
	unserved []netip.AddrPort
}

func (f *finding) equal(o *finding) bool {
	if f == nil || o == nil {
		return f == o
	}
	return slices.EqualFunc(f.conflicts, o.conflicts, conflicts.equal) && slices.Equal(f.unserved, o.unserved) &&
		slices.EqualFunc(f.problems, o.problems, func(x, y *Problem) bool { return x.compare(y) == 0 })
}

// set replaces the problems under a key.
func (b *problemStore) set(key problemKey, problems []*Problem) {
	if len(problems) == 0 {
		b.note(key, nil)
		return
	}
	b.note(key, &finding{problems: problems})
}

func (b *problemStore) note(key problemKey, f *finding) {
	old, _ := b.findings.Get(key)
	switch {
	case f.equal(old):
		return
	case f == nil:
		b.findings.Delete(key)
	default:
		b.findings.Set(key, f)
	}
	b.stale = true
}

// countNodePorts counts a service port that is added (+1) or removed (-1).
func (b *problemStore) countNodePorts(p *portSpec, by int) {
	switch {
	case p.nodePort == 0:
	case p.name.Family == v1.IPv6Protocol:
		b.nodePorts[1] += by
	default:
		b.nodePorts[0] += by
	}
}

// checkNodePorts reports node ports at the primary addresses of a node that has no known
// address of their family.
func (b *problemStore) checkNodePorts(o *TrackerOptions, n *Node) {
	name := types.NamespacedName{Name: n.Name}
	var problems []*Problem
	for i, family := range ipaddr.Families() {
		served := n.NodePorts.All || !o.NodePortAddresses.selectsPrimary() ||
			slices.ContainsFunc(n.NodePorts.Prefixes, func(p netip.Prefix) bool { return ipaddr.FamilyOf(p.Addr()) == family })
		if b.nodePorts[i] > 0 && !served {
			problems = append(problems, &Problem{Kind: "Node", NamespacedName: name, Field: "status.addresses", Reason: NodeIncomplete,
				Err: fmt.Errorf("the node has no known %s address, so node ports of this family are not served", family)})
		}
	}
	b.set(problemKey{kind: "Node", NamespacedName: name, about: aboutNodePorts}, problems)
}

// sliceProblems turns the error of an EndpointSlice into problems.
func sliceProblems(key problemKey, err error) []*Problem {
	if err == nil {
		return nil
	}
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok { // the parts of this error itself, not of one that it wraps
		errs = joined.Unwrap()
	}
	var out []*Problem
	for _, e := range errs {
		if len(out) == maxProblems {
			return append(out, &Problem{Kind: key.kind, NamespacedName: key.NamespacedName, Field: "endpoints", Reason: TooMany, Err: fmt.Errorf("%d more errors", len(errs)-len(out))})
		}
		p := &Problem{Kind: key.kind, NamespacedName: key.NamespacedName, Reason: InvalidValue, Err: e}
		if field, ok := errors.AsType[*endpoints.FieldError](e); ok {
			p.Field, p.Err = field.Field, field.Err
		}
		out = append(out, p)
	}
	return out
}
