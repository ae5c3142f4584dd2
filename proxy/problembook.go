package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/ipaddr"
)

// problemBook keeps what is wrong with objects, by object.
type problemBook struct {
	byObject map[problemKey][]*Problem
	// stale says that the list must be made anew.
	stale bool
	// nodePorts counts the node ports of IPv4 and IPv6 that Services ask for.
	nodePorts [2]int
}

// problemKey names an object, or one port of a Service for what concerns its
// conflicts with others.
type problemKey struct {
	kind string
	types.NamespacedName
	port ServicePortName
}

func objectKey(kind string, name types.NamespacedName) problemKey {
	return problemKey{kind: kind, NamespacedName: name}
}

func conflictKey(name ServicePortName) problemKey {
	return problemKey{kind: "Service", NamespacedName: name.NamespacedName, port: name}
}

func limitKey(name ServicePortName) problemKey {
	return problemKey{kind: "limit", NamespacedName: name.NamespacedName, port: name}
}

func (b *problemBook) any() bool { return len(b.byObject) > 0 }

func (b *problemBook) set(key problemKey, problems []*Problem) {
	_, had := b.byObject[key]
	if len(problems) == 0 {
		if had {
			delete(b.byObject, key)
			b.stale = true
		}
		return
	}
	if b.byObject == nil {
		b.byObject = map[problemKey][]*Problem{}
	}
	same := slices.EqualFunc(b.byObject[key], problems, func(x, y *Problem) bool { return x.compare(y) == 0 })
	b.byObject[key] = problems
	b.stale = b.stale || !same
}

// countNodePorts notes that a service port comes (+1) or goes (-1).
func (b *problemBook) countNodePorts(p *portSpec, by int) {
	switch {
	case p.nodePort == 0:
	case p.name.Family == v1.IPv6Protocol:
		b.nodePorts[1] += by
	default:
		b.nodePorts[0] += by
	}
}

// checkNodePorts reports node ports that are to be served at the primary
// addresses of a node that is not known to have any.
func (b *problemBook) checkNodePorts(o *TrackerOptions, n *Node) {
	if b.nodePorts == [2]int{} && len(b.byObject) == 0 {
		return
	}
	name := types.NamespacedName{Name: n.Name}
	var problems []*Problem
	for i, family := range [...]v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		served := o.NodePortAddresses.All || len(o.NodePortAddresses.Prefixes) > 0 ||
			slices.ContainsFunc(n.NodePorts.Prefixes, func(p netip.Prefix) bool { return ipaddr.FamilyOf(p.Addr()) == family })
		if b.nodePorts[i] > 0 && !served {
			problems = append(problems, &Problem{Kind: "Node", NamespacedName: name, Field: "status.addresses",
				Err: fmt.Errorf("no %s address is known: the node ports of %d service ports are not served", family, b.nodePorts[i])})
		}
	}
	b.set(problemKey{kind: "node ports"}, problems)
}

// list gives all problems in order.
func (b *problemBook) list() []*Problem {
	b.stale = false
	var out []*Problem
	for _, problems := range b.byObject {
		out = append(out, problems...)
	}
	slices.SortFunc(out, (*Problem).compare)
	return out
}

// sliceProblems turns the error of an EndpointSlice into problems.
func sliceProblems(key problemKey, err error) []*Problem {
	if err == nil {
		return nil
	}
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok { // the parts of this very error
		errs = joined.Unwrap()
	}
	var out []*Problem
	for _, e := range errs {
		p := &Problem{Kind: key.kind, NamespacedName: key.NamespacedName, Err: e}
		if field, ok := errors.AsType[*endpoints.FieldError](e); ok {
			p.Field, p.Err = field.Field, field.Err
		}
		out = append(out, p)
	}
	return out
}
