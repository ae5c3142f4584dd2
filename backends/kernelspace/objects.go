package kernelspace

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// kind is the kind of an object, in the order of creation.
type kind uint8

const (
	kindEndpoint     kind = iota // an endpoint that the backend makes
	kindLoadBalancer             // a load balancer of one address, protocol and port
	kindHealthCheck              // the load balancer of health checks, for all ports of a Service
	kindUnread                   // what cannot be read: no object, only a key of a [pendingObject]
)

// key names an object. HNS refuses a second load balancer of one address, protocol and port, so a
// key is a load balancer's name although HNS gives it none.
type key struct {
	kind kind
	// protocol is the number of IP; 0 for endpoints.
	protocol uint8
	// role is what an endpoint is for. Several may want one address: an EndpointSlice may have any. Then the
	// greatest role counts.
	role role
	// mapping are the flags of a load balancer of health checks.
	mapping hcn.PortMappingFlags
	// addr is the address of an endpoint, with port 0, or the address and port of a frontend; that
	// of a node port is the unspecified one of its family.
	addr netip.AddrPort
}

// Rank implements [backends.Key].
func (k key) Rank() int { return int(min(k.kind, kindLoadBalancer)) }

// Shared implements [backends.Key]: Services share endpoints, and ports of a Service its address for
// health checks.
func (k key) Shared() bool { return k.kind != kindLoadBalancer }

// role is what an endpoint is for, in the order of precedence: without a pod's endpoint one Service
// suffers, without the source address all do. Its number is not stored anywhere.
type role uint8

const (
	rolePod    role = iota // a pod of another node
	roleVIP                // a ClusterIP in an overlay network
	roleSource             // the source address of load balancers in an overlay network
)

// value is the content of an object.
type value struct {
	// The content of a load balancer: the port of its endpoints, its flags without the flag of the
	// family, and its endpoints as encode returns them.
	port         uint16
	flags        hcn.LoadBalancerFlags
	mapping      hcn.PortMappingFlags
	distribution hcn.Distribution
	endpoints    string
	// host is the node's primary address, for what may have it in an overlay network: as the provider
	// address of an endpoint, or the source address of a load balancer.
	host netip.Addr
	// wrong says that the other fields do not describe the object, or that it is not known as the
	// backend's own yet. Render never sets it.
	wrong bool
}

// payload is what it takes beside a value to write an object.
type payload struct {
	// inPlace says that a load balancer may be modified.
	inPlace bool
	// node are the addresses of the node: an endpoint with one of them need not exist in HNS.
	node []netip.Addr
}

type (
	object = backends.Object[key, value]
	op     = backends.Op[key, value]
)

// isHere reports whether an endpoint is on a node. One with the node's address is, whatever its
// EndpointSlice says: a remote endpoint with that address could take the node's own traffic. So is one with an
// address that only a pod of the node gets: a remote endpoint would keep HNS from making the pod's own.
func (r *renderer) isHere(node *proxy.Node, e *endpoints.Endpoint) bool {
	return e.Local || slices.Contains(node.Addresses, e.Addr.Addr()) || r.isOwn(node, e.Addr.Addr())
}

// isOwn reports whether an address is in a subnet of the network that only this node has: in an overlay network, if
// no remote subnet has the address; otherwise, if the subnet is a pod range of the node. Nodes may share others.
func (r *renderer) isOwn(node *proxy.Node, a netip.Addr) bool {
	i := slices.IndexFunc(r.network.Subnets, func(s netip.Prefix) bool { return s.Contains(a) })
	if i < 0 {
		return false
	}
	if r.overlay {
		_, isRemote := providerOf(&r.network, a)
		return !isRemote
	}
	return node.LocalTraffic.NodePodCIDRs && slices.Contains(node.LocalTraffic.Sources, r.network.Subnets[i].Masked())
}

// encode returns a list of endpoints of one family and port as a text that can be compared: "l10.0.0.1 r10.1.0.9 " has
// one on the node and one elsewhere.
func (r *renderer) encode(node *proxy.Node, list []*endpoints.Endpoint) string {
	var out []byte
	for i, e := range list {
		if i == 0 || e.Addr != list[i-1].Addr { // pools are sorted
			out = appendEndpoint(out, e.Addr.Addr(), r.isHere(node, e))
		}
	}
	return string(out)
}

func appendEndpoint(out []byte, a netip.Addr, isLocal bool) []byte {
	where := byte('r')
	if isLocal {
		where = 'l'
	}
	return append(a.AppendTo(append(out, where)), ' ')
}

// decode calls each with the endpoints of a list.
func (v *value) decode(each func(a netip.Addr, isLocal bool)) {
	for text := range strings.FieldsSeq(v.endpoints) {
		if a, err := netip.ParseAddr(text[1:]); err == nil {
			each(a, text[0] == 'l')
		}
	}
}
