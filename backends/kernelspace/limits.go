package kernelspace

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// check is Check of [backends.TargetAbilities].
func (r *renderer) check(node *proxy.Node, port *proxy.ServicePort) error {
	family := port.Name.Family
	switch {
	case !r.serves(family):
		return nil
	case family == v1.IPv6Protocol && r.withoutIPv6() != "":
		return fmt.Errorf("%w: %s has no IPv6: set Options.Families to IPv4", proxy.ErrUnsupported, r.withoutIPv6())
	case r.overlay && !primary(node, family).IsValid():
		return errors.New("the node has no address of IPv4, which endpoints of an overlay network need")
	case r.overlay && isSourceOf(port, r.options.sourceVIP(family)):
		return fmt.Errorf("%v is the source address of load balancers: it can be no endpoint, and no address of a Service", r.options.sourceVIP(family))
	}
	return nil
}

// withoutIPv6 returns what has no IPv6; empty if it can be served.
func (r *renderer) withoutIPv6() string {
	switch {
	case r.overlay:
		return "an overlay network of HNS"
	case !r.features.DualStack:
		return "this version of HNS"
	}
	return ""
}

// serves reports whether a family is to be served.
func (r *renderer) serves(family v1.IPFamily) bool {
	return slices.Contains(r.options.Families, family) && (family != v1.IPv6Protocol || !r.options.IPv4Fallback || r.withoutIPv6() == "")
}

// unserved returns an error if Services have ports of a family that is not served although the options
// have it.
func (r *renderer) unserved(s proxy.Snapshot) error {
	if r.serves(v1.IPv6Protocol) || !slices.Contains(r.options.Families, v1.IPv6Protocol) {
		return nil
	}
	for p := range s.All() {
		if p.Name.Family == v1.IPv6Protocol {
			return fmt.Errorf("%s has no IPv6: Services are served at their addresses of IPv4 only", r.withoutIPv6())
		}
	}
	return nil
}

// isSourceOf reports whether a port has the source address of load balancers as an endpoint, or as an
// address of its own: answers to that address would go to its endpoints.
func isSourceOf(port *proxy.ServicePort, source netip.Addr) bool {
	isSource := func(e *endpoints.Endpoint) bool { return e.Addr.Addr() == source }
	return slices.ContainsFunc(port.Cluster, isSource) || slices.ContainsFunc(port.Local, isSource) ||
		slices.ContainsFunc(port.Frontends, func(f proxy.Frontend) bool { return f.Addr.Addr() == source })
}

// limits is CheckLimits of [proxy.Abilities].
func (r *renderer) limits(node *proxy.Node, port *proxy.ServicePort) []*proxy.Problem {
	if !r.serves(port.Name.Family) {
		return nil
	}
	l := limits{renderer: r, node: node, port: port}
	l.affinity()
	for i := range port.Frontends {
		l.frontend(&port.Frontends[i])
	}
	return l.found
}

// limits collects what HNS honours only in part for a service port.
type limits struct {
	*renderer
	node  *proxy.Node
	port  *proxy.ServicePort
	found []*proxy.Problem
}

func (l *limits) add(field, format string, args ...any) {
	err := fmt.Errorf(format, args...)
	for _, p := range l.found {
		if p.Field == field && p.Err.Error() == err.Error() {
			return // several frontends have it
		}
	}
	l.found = append(l.found, &proxy.Problem{Kind: "Service", NamespacedName: l.port.Name.NamespacedName, Field: field, Reason: proxy.ServedWithLimits, Err: err})
}

func (l *limits) affinity() {
	switch {
	case !l.port.Affinity.Enabled():
	case !l.features.SessionAffinity:
		l.add("spec.sessionAffinity", "this version of HNS has no session affinity: a client's connections reach different endpoints")
	default:
		l.add("spec.sessionAffinityConfig.clientIP.timeoutSeconds", "HNS has no timeout: a client keeps its endpoint until the endpoints change")
	}
}

func (l *limits) frontend(f *proxy.Frontend) {
	if l.withholds(f) {
		l.add("spec.loadBalancerSourceRanges", "HNS cannot check the sources of connections: %v is not served; have the load balancer check them, and set Options.ServeRestricted", f.Addr)
		return
	}
	if f.Restricted && l.options.ServeRestricted {
		l.add("spec.loadBalancerSourceRanges", "HNS cannot check the sources of connections: %v is served to all sources", f.Addr)
	}
	l.routes(f)
	l.preserved(f)
	if f.Kind == proxy.NodePort && !l.node.NodePorts.All && answers(l.node, l.port.Name.Family) {
		l.add("spec.ports.nodePort", "HNS cannot restrict node ports to some addresses of the node: %d answers at all of them", f.Addr.Port())
	}
	list, dsr := l.serving(l.node, l.port, f)
	l.ofNode(list)
	if _, port, others := commonPort(list); others > 0 {
		l.add("spec.ports", "port %q: a load balancer of HNS has one target port: %d of %d endpoints, which do not have %d, are not used", l.port.Name.Port, others, len(list), port)
	}
	if f.Kind != proxy.ClusterIP && f.FromOutside.Action == proxy.Forward && f.FromOutside.Pool == proxy.PoolLocal && !dsr {
		l.add("spec.externalTrafficPolicy", "this version of HNS has no direct server return: endpoints do not see the addresses of clients")
	}
	if l.port.Annotations[PreserveDestinationAnnotation] == "true" && !l.features.DSR {
		l.add("metadata.annotations["+PreserveDestinationAnnotation+"]", "this version of HNS has no direct server return: the destination is not preserved")
	}
}

// preserved reports what the annotation for the destination address takes from a frontend.
func (l *limits) preserved(f *proxy.Frontend) {
	isExternal := f.Kind == proxy.LoadBalancer || f.Kind == proxy.NodePort
	if !isExternal || !l.preserves(l.port) || f.FromOutside.Action != proxy.Forward {
		return
	}
	const field = "metadata.annotations[" + PreserveDestinationAnnotation + "]"
	if list, _ := l.serving(l.node, l.port, f); len(list) == 0 {
		l.add(field, "the destination can be preserved for endpoints of this node only, and there is none: %v is not served", f.Addr)
	} else if len(list) < len(l.port.Pool(f.FromOutside.Pool)) {
		l.add(field, "the destination can be preserved for endpoints of this node only: endpoints of other nodes do not serve %v", f.Addr)
	}
}

// ofNode reports endpoints with an address of this node.
func (l *limits) ofNode(list []*endpoints.Endpoint) {
	for _, e := range list {
		if slices.Contains(l.node.Addresses, e.Addr.Addr()) {
			l.add("spec.selector", "endpoint %v has an address of this node: here it serves only if HNS has an endpoint with that address", e.Addr)
		}
	}
}

// routes reports actions that no load balancer has, and routes of clients from inside that differ
// from the routes of clients from outside.
func (l *limits) routes(f *proxy.Frontend) {
	inside, outside := f.FromInside, f.FromOutside
	if inside.Action == proxy.Reject || outside.Action == proxy.Reject {
		l.add("spec", "without endpoints HNS has no load balancer: connections to %v get no refusal", f.Addr)
		return
	}
	if f.Kind != proxy.ClusterIP && inside.Action == proxy.Forward && (outside.Action != proxy.Forward || inside.Pool != outside.Pool) {
		l.add("spec.externalTrafficPolicy", "HNS cannot distinguish connections from inside the cluster: those to external addresses and node ports also reach endpoints of this node only")
	}
}
