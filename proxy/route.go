package proxy

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/internal/ipaddr"
)

// Packet is the first packet of a connection, as the node receives or sends it. It
// is a comparable value.
type Packet struct {
	// Protocol is TCP, UDP or SCTP; any other value means a protocol
	// without ports, such as ICMP.
	Protocol v1.Protocol
	// Source and Destination are those of the packet before any translation.
	Source, Destination netip.AddrPort
	// FromNode says that a process on the node sends the packet.
	FromNode bool
	// Interface is the name of the interface that receives the packet, unless FromNode is true.
	Interface string
	// ToNode says that the destination is an address of the node, where node
	// ports may answer.
	ToNode bool
}

// Verdict is what must happen to a packet.
type Verdict struct {
	// Action is what must happen.
	Action Action
	// Endpoints are, for Forward, the endpoints of which any may get the packet,
	// sorted by address.
	Endpoints []Destination
	// Affinity is whether and for how long a client that has been forwarded
	// once must get the same endpoint again.
	Affinity affinity.Config
	// Name is the service port that the packet is for; the zero value for a packet without
	// frontend.
	Name ServicePortName
	// Frontend is the frontend of that port.
	Frontend Frontend
	// Reasons are the steps to the verdict, in words.
	Reasons []string
}

// Destination is an endpoint that a packet may be forwarded to.
type Destination struct {
	// Addr is the endpoint.
	Addr netip.AddrPort
	// Masquerade says that the endpoint sees an address of the node instead
	// of the client's. A received packet to an endpoint with an address of the
	// node itself keeps its source: it does not leave the node.
	Masquerade bool
}

// Route is the specification of a service proxy: it returns what must happen to the
// first packet of a connection, and why. The conformance suite holds all backends to
// it; users call it to find out why a packet is forwarded or not. It reads every
// service port, so it is not meant for the data path.
func Route(s Snapshot, p Packet) Verdict {
	p.Source, p.Destination = ipaddr.Unmap(p.Source), ipaddr.Unmap(p.Destination)
	r := router{snapshot: s, packet: p}
	r.run()
	return r.verdict
}

type router struct {
	snapshot Snapshot
	packet   Packet
	verdict  Verdict
}

func (r *router) reason(format string, args ...any) {
	r.verdict.Reasons = append(r.verdict.Reasons, fmt.Sprintf(format, args...))
}

func (r *router) run() {
	if r.snapshot.IsZero() {
		r.reason("no snapshot yet")
		return
	}
	dst := r.packet.Destination
	if port, f := r.find(dst); port != nil {
		r.reason("%s/%s is the %s of %s", dst, r.packet.Protocol, f.Kind, port.Name)
		r.frontend(port, f)
		return
	}
	if r.packet.ToNode && r.servesNodePorts(dst.Addr()) {
		wanted := netip.AddrPortFrom(ipaddr.Unspecified(ipaddr.FamilyOf(dst.Addr())), dst.Port())
		if port, f := r.find(wanted); port != nil {
			r.reason("%s/%s is the %s of %s, and %s serves node ports", dst, r.packet.Protocol, f.Kind, port.Name, dst.Addr())
			r.frontend(port, f)
			return
		}
	}
	r.noFrontend(dst)
}

// find returns the frontend with an address, and its service port; nil if there is none.
func (r *router) find(addr netip.AddrPort) (*ServicePort, *Frontend) {
	for port := range r.snapshot.All() {
		if port.Name.Protocol != r.packet.Protocol {
			continue
		}
		for i := range port.Frontends {
			if port.Frontends[i].Addr == addr {
				return port, &port.Frontends[i]
			}
		}
	}
	return nil, nil
}

func (r *router) servesNodePorts(a netip.Addr) bool {
	switch {
	case r.snapshot.Node().NodePorts.Contains(a):
		return true
	case a.IsLoopback():
		return r.servesLoopback(a)
	default:
		r.reason("%s is not among the addresses that serve node ports", a)
	}
	return false
}

// servesLoopback reports whether node ports answer the packet at a loopback address.
func (r *router) servesLoopback(a netip.Addr) bool {
	switch selected := r.snapshot.Node().NodePorts.LoopbackAddresses(); {
	case !slices.Contains(selected, a):
		r.reason("%s is not among the loopback addresses that serve node ports", a)
	case !r.packet.FromNode:
		r.reason("%s is a loopback address, where node ports answer only processes of the node", a)
	case r.packet.Protocol == v1.ProtocolSCTP:
		r.reason("%s is a loopback address, where node ports answer only TCP and UDP", a)
	default:
		return true
	}
	return false
}

// noFrontend decides about packets without frontend: it rejects ports that a ClusterIP
// does not have, and drops packets to unused addresses of service ranges. It passes packets to
// addresses of the node, where other programs may answer.
func (r *router) noFrontend(dst netip.AddrPort) {
	if slices.Contains(r.snapshot.Node().Addresses, dst.Addr()) {
		r.reason("%s is an address of the node, and no frontend", dst.Addr())
		if !r.packet.ToNode {
			r.reason("node ports answer only packets with ToNode")
		}
		return
	}
	for port := range r.snapshot.All() {
		for _, f := range port.Frontends {
			if f.Kind == ClusterIP && f.Addr.Addr() == dst.Addr() {
				r.reason("%s is the ClusterIP of %s, which has no such port", dst.Addr(), port.Name.NamespacedName)
				r.verdict.Action = Reject
				return
			}
		}
	}
	for _, cidr := range r.snapshot.Node().ServiceCIDRs {
		if cidr.Contains(dst.Addr()) {
			r.reason("%s lies in the service range %s, but no Service has it", dst.Addr(), cidr)
			r.verdict.Action = Drop
			return
		}
	}
	r.reason("%s is no address of any Service", dst)
}

func (r *router) frontend(port *ServicePort, f *Frontend) {
	r.verdict.Name, r.verdict.Frontend = port.Name, *f
	src := r.packet.Source.Addr()
	switch {
	case !f.Allows(src):
		r.reason("%s is not in the allowed source ranges", src)
		r.verdict.Action = Drop
		return
	case f.Restricted:
		r.reason("%s is in the allowed source ranges", src)
	}
	pod, node, outside := f.Routes()
	switch {
	case r.snapshot.Node().LocalTraffic.Match(src, r.packet.Interface):
		r.reason("the packet comes from a pod")
		r.follow(port, f.FromInside.Masquerade, pod)
	case r.packet.FromNode:
		r.reason("the packet comes from the node itself")
		r.follow(port, f.FromInside.Masquerade, node)
	default:
		r.reason("the packet comes from outside")
		r.follow(port, f.FromOutside.Masquerade, outside)
	}
}

func (r *router) follow(port *ServicePort, masquerade Masquerade, route TrafficRoute) {
	r.verdict.Action = route.Action
	switch route.Action {
	case Reject:
		r.reason("no endpoint anywhere can serve")
		return
	case Drop:
		r.reason("the Local traffic policy finds no endpoint on this node")
		return
	case Pass:
		r.reason("the route passes the packet")
		return
	case Forward:
	}
	pool := port.Pool(route.Pool)
	r.reason("one of the %d endpoints of the %s pool gets it; masquerade: %s", len(pool), route.Pool, masquerade)
	if r.verdict.Affinity = port.Affinity; port.Affinity.Enabled() {
		r.reason("a client keeps its endpoint until %v after its last connection", port.Affinity.Timeout)
	}
	for _, e := range pool {
		masquerade := route.Masquerades(r.snapshot.Node(), r.packet.Source.Addr(), e.Addr.Addr(), r.packet.FromNode)
		switch {
		case r.packet.Destination.Addr().IsLoopback():
			masquerade = true // A process of the node makes the connection to the endpoint.
		case masquerade && route.Masquerade == MasqueradeNever:
			r.reason("client and endpoint are both %s (hairpin), so the packet is masqueraded", e.Addr)
		case !masquerade && route.Masquerade == MasqueradeAlways:
			r.reason("%s is on the node itself, so the packet does not leave it", e.Addr)
		}
		r.verdict.Endpoints = append(r.verdict.Endpoints, Destination{Addr: e.Addr, Masquerade: masquerade})
	}
}
