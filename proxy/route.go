package proxy

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/internal/ipaddr"
)

// Packet is the first packet of a connection, as it meets the node. It is a
// comparable value.
type Packet struct {
	// Protocol is TCP, UDP or SCTP; anything else stands for a protocol
	// without ports, like ICMP.
	Protocol            v1.Protocol
	Source, Destination netip.AddrPort
	// FromNode says that a process on the node sends it; Interface is where
	// it comes in otherwise.
	FromNode  bool
	Interface string
	// ToNode says that the destination is an address of the node, where node
	// ports may answer.
	ToNode bool
}

// Verdict is what must become of a packet.
type Verdict struct {
	Action Action
	// Endpoints are, for Forward, those of which any one may get the packet,
	// sorted by address.
	Endpoints []Destination
	// Affinity tells whether and for how long a client that has been
	// forwarded once must get the same endpoint again.
	Affinity affinity.Config
	// Name and Frontend tell which frontend the packet meets. For a packet
	// that meets none, Name is the zero value.
	Name     ServicePortName
	Frontend Frontend
	// Reasons are the steps to the verdict, in words.
	Reasons []string
}

// Destination is an endpoint that a packet may be forwarded to.
type Destination struct {
	Addr netip.AddrPort
	// Masquerade says that the endpoint sees an address of the node instead
	// of the client's. A packet that comes in to an endpoint with an address
	// of the node itself keeps its source: it does not leave the node.
	Masquerade bool
}

// Route is the specification of a service proxy: what must become of the first
// packet of a connection, and why. All backends are held to it; users call it to
// ask why a packet goes where it goes. It looks at every service port, so it is
// not meant for the data path.
func Route(s Snapshot, p Packet) Verdict {
	p.Source, p.Destination = unmap(p.Source), unmap(p.Destination)
	r := router{snapshot: s, packet: p}
	r.run()
	return r.verdict
}

// unmap gives an IPv4 address in IPv6 form, as sockets report it, as IPv4.
func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

type router struct {
	snapshot Snapshot
	packet   Packet
	verdict  Verdict
}

func (r *router) because(format string, args ...any) {
	r.verdict.Reasons = append(r.verdict.Reasons, fmt.Sprintf(format, args...))
}

func (r *router) run() {
	if r.snapshot.IsZero() {
		r.because("nothing is known about services yet")
		return
	}
	dst := r.packet.Destination
	if port, f := r.find(dst); port != nil {
		r.because("%s/%s is a %s of %s", dst, r.packet.Protocol, f.Kind, port.Name)
		r.frontend(port, f)
		return
	}
	if r.packet.ToNode && r.servesNodePorts(dst.Addr()) {
		wanted := netip.AddrPortFrom(unspecified(ipaddr.FamilyOf(dst.Addr())), dst.Port())
		if port, f := r.find(wanted); port != nil {
			r.because("%s/%s is a %s of %s, and %s serves node ports", dst, r.packet.Protocol, f.Kind, port.Name, dst.Addr())
			r.frontend(port, f)
			return
		}
	}
	r.noFrontend(dst)
}

// find gives the frontend with an address, if a service port owns it.
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
	if a.IsLoopback() {
		r.because("%s is a loopback address, which never serves node ports", a)
		return false
	}
	at := r.snapshot.Node().NodePorts
	if at.All || slices.ContainsFunc(at.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return true
	}
	r.because("%s is not among the addresses that serve node ports", a)
	return false
}

// noFrontend deals with packets that meet no frontend: the service network is
// no place to wander about in.
func (r *router) noFrontend(dst netip.AddrPort) {
	for port := range r.snapshot.All() {
		for _, f := range port.Frontends {
			if f.Kind == ClusterIP && f.Addr.Addr() == dst.Addr() {
				r.because("%s is the ClusterIP of %s, which has no such port", dst.Addr(), port.Name.NamespacedName)
				r.verdict.Action = Reject
				return
			}
		}
	}
	for _, cidr := range r.snapshot.Node().ServiceCIDRs {
		if cidr.Contains(dst.Addr()) {
			r.because("%s lies in the service range %s, but no Service has it", dst.Addr(), cidr)
			r.verdict.Action = Drop
			return
		}
	}
	r.because("%s is no address of any Service", dst)
	if !r.packet.ToNode && slices.Contains(r.snapshot.Node().Addresses, dst.Addr()) {
		r.because("%s is the node's own: node ports answer packets that say so by ToNode", dst.Addr())
	}
}

func (r *router) frontend(port *ServicePort, f *Frontend) {
	r.verdict.Name, r.verdict.Frontend = port.Name, *f
	src := r.packet.Source.Addr()
	if f.Restricted {
		if !slices.ContainsFunc(f.AllowedSources, func(p netip.Prefix) bool { return p.Contains(src) }) {
			r.because("%s is not in the allowed source ranges", src)
			r.verdict.Action = Drop
			return
		}
		r.because("%s is in the allowed source ranges", src)
	}
	node := r.snapshot.Node()
	pod := node.LocalTraffic.Match(src, r.packet.Interface)
	route := f.FromOutside
	switch {
	case pod:
		r.because("the packet comes from a pod")
		route = f.FromInside
	case r.packet.FromNode:
		r.because("the packet comes from the node itself")
		route = f.FromInside
	default:
		r.because("the packet comes from outside")
	}
	r.follow(port, route, pod)
}

func (r *router) follow(port *ServicePort, route TrafficRoute, pod bool) {
	r.verdict.Action = route.Action
	switch route.Action {
	case Reject:
		r.because("no endpoint anywhere can serve")
		return
	case Drop:
		r.because("the Local traffic policy finds no endpoint on this node")
		return
	case Pass:
		r.because("the route leaves it alone")
		return
	case Forward:
	}
	masquerade := route.Masquerade == MasqueradeAlways || route.Masquerade == MasqueradeNonPods && !pod
	pool := port.Pool(route.Pool)
	r.because("one of the %d endpoints of the %s pool gets it; masquerade: %s", len(pool), route.Pool, route.Masquerade)
	if r.verdict.Affinity = port.Affinity; port.Affinity.Enabled() {
		r.because("a client keeps its endpoint until %v after its last connection", port.Affinity.Timeout)
	}
	for i := range pool {
		to := Destination{Addr: pool[i].Addr, Masquerade: masquerade}
		switch addr := to.Addr.Addr(); {
		case masquerade && !r.packet.FromNode && slices.Contains(r.snapshot.Node().Addresses, addr):
			to.Masquerade = false
			r.because("%s is on the node itself, so the packet does not leave it", to.Addr)
		case addr == r.packet.Source.Addr() && !masquerade:
			to.Masquerade = true
			r.because("%s would answer itself, so it is masqueraded", to.Addr)
		}
		r.verdict.Endpoints = append(r.verdict.Endpoints, to)
	}
}
