package kernelspace

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// The annotations of Services that the backend understands, if [proxy.TrackerOptions] names them.
const (
	// PreserveDestinationAnnotation with the value "true" lets pods see the load balancer's address
	// as the destination of packets to it. Then only endpoints of this node serve that address
	// and the node port. HNS must have DSR.
	PreserveDestinationAnnotation = "preserve-destination"
	// OptimizationAnnotation with the value "DISABLED" has the Service's load balancers deleted and
	// made again instead of modified.
	OptimizationAnnotation = "winProxyOptimization"
)

// facts are what the last list has found of HNS; zero before.
type facts struct {
	features hcn.Features
	network  hcn.Network
	overlay  bool // says that network is one
}

// renderer renders the objects of service ports from facts. It is immutable.
type renderer struct {
	options *Options
	facts
}

// rendererFor returns a renderer for a world.
func (o *Options) rendererFor(env backends.Env) *renderer {
	f, _ := env.Facts.(facts)
	return &renderer{o, f}
}

// render is a [backends.Render].
func (r *renderer) render(node *proxy.Node, port *proxy.ServicePort, out []object) []object {
	if port == nil {
		return r.static(out)
	}
	if !r.serves(port.Name.Family) {
		return out
	}
	w := portWriter{renderer: r, node: node, port: port, out: out}
	w.payload = payload{node: node.Addresses, inPlace: port.Annotations[OptimizationAnnotation] != "DISABLED"}
	if r.overlay {
		w.host = primary(node, port.Name.Family)
	}
	for i := range port.Frontends {
		w.frontend(&port.Frontends[i])
	}
	return w.out
}

// static renders the endpoint that load balancers of an overlay network send from.
func (r *renderer) static(out []object) []object {
	source := r.options.sourceVIP(v1.IPv4Protocol)
	if !r.overlay || !source.IsValid() {
		return out
	}
	return append(out, object{Key: endpointKey(source, roleSource), Payload: payload{}})
}

func endpointKey(a netip.Addr, r role) key {
	return key{kind: kindEndpoint, role: r, addr: netip.AddrPortFrom(a, 0)}
}

// primary returns the node's primary address of a family, the zero Addr if it has none.
func primary(node *proxy.Node, family v1.IPFamily) netip.Addr {
	for _, a := range node.Addresses {
		if ipaddr.FamilyOf(a) == family {
			return a
		}
	}
	return netip.Addr{}
}

// portWriter writes the objects of one service port.
type portWriter struct {
	*renderer
	node    *proxy.Node
	port    *proxy.ServicePort
	host    netip.Addr
	payload any
	out     []object
	// made are the lists of endpoints that were written.
	made []string
}

func (w *portWriter) add(k key, v value) {
	w.out = append(w.out, object{Key: k, Value: v, Payload: w.payload})
}

// frontend writes a frontend: endpoints, and the load balancer that refers to them.
func (w *portWriter) frontend(f *proxy.Frontend) {
	list, dsr := w.serving(w.node, w.port, f)
	list, target, _ := commonPort(list)
	if len(list) == 0 {
		return
	}
	v := value{port: target, endpoints: w.encode(w.node, list), mapping: w.mapping(f), host: w.host}
	if dsr {
		v.flags = hcn.DSR
	}
	if w.port.Affinity.Enabled() && w.features.SessionAffinity {
		v.distribution = hcn.BySource
	}
	w.endpoints(list, v.endpoints)
	if w.overlay && f.Kind == proxy.ClusterIP {
		w.add(endpointKey(f.Addr.Addr(), roleVIP), value{host: w.host})
	}
	w.add(key{kind: kindLoadBalancer, protocol: ipaddr.ProtocolNumber(w.port.Name.Protocol), addr: f.Addr}, v)
	w.healthCheck(f, v)
}

// endpoints writes the endpoints of other nodes in a list, unless it has been written.
func (w *portWriter) endpoints(list []*endpoints.Endpoint, encoded string) {
	if slices.Contains(w.made, encoded) {
		return
	}
	w.made = append(w.made, encoded)
	for i, e := range list {
		if !w.isHere(w.node, e) && (i == 0 || e.Addr != list[i-1].Addr) {
			w.add(endpointKey(e.Addr.Addr(), rolePod), value{host: w.host})
		}
	}
}

// healthCheck writes the load balancer that takes health checks to the node.
func (w *portWriter) healthCheck(f *proxy.Frontend, of value) {
	port := w.port.HealthCheckNodePort
	if port == 0 {
		port = w.options.HealthChecks.Port
	}
	if w.options.HealthChecks.Endpoint == "" || port == 0 || f.Kind != proxy.LoadBalancer {
		return
	}
	at := netip.AddrPortFrom(f.Addr.Addr(), port)
	if w.port.Name.Protocol == v1.ProtocolTCP && slices.ContainsFunc(w.port.Frontends, func(f proxy.Frontend) bool { return f.Addr == at }) {
		return // the Service itself has this address and port
	}
	mapping := of.mapping & (hcn.UseMux | hcn.PreserveDIP)
	w.add(key{kind: kindHealthCheck, protocol: ipaddr.TCP, addr: at, mapping: mapping}, value{port: port, mapping: mapping})
}

// mapping returns the flags of the port mapping of a frontend.
func (w *portWriter) mapping(f *proxy.Frontend) hcn.PortMappingFlags {
	switch f.Kind {
	case proxy.NodePort:
		return hcn.VIPExternalIP | hcn.LocalRoutedVIP
	case proxy.ExternalIP:
		return hcn.VIPExternalIP
	case proxy.LoadBalancer:
		if w.preserves(w.port) {
			return hcn.VIPExternalIP | hcn.UseMux | hcn.PreserveDIP
		}
		return hcn.VIPExternalIP
	case proxy.ClusterIP:
	}
	return 0
}

// preserves reports whether the destination address is preserved.
func (r *renderer) preserves(port *proxy.ServicePort) bool {
	return port.Annotations[PreserveDestinationAnnotation] == "true" && r.features.DSR
}

// serving returns the endpoints that serve a frontend, none if it has no load balancer, and whether
// it uses direct server return. A load balancer has one list of endpoints for all clients:
// that for clients from inside at a ClusterIP, and that for clients from outside elsewhere.
func (r *renderer) serving(node *proxy.Node, port *proxy.ServicePort, f *proxy.Frontend) (list []*endpoints.Endpoint, dsr bool) {
	route := f.FromOutside
	if f.Kind == proxy.ClusterIP {
		route = f.FromInside
	}
	if route.Action != proxy.Forward || r.withholds(f) || f.Kind == proxy.NodePort && !answers(node, port.Name.Family) {
		return nil, false
	}
	list = port.Pool(route.Pool)
	dsr = r.features.DSR && route.Pool == proxy.PoolLocal
	switch f.Kind {
	case proxy.ClusterIP:
		dsr = r.options.DSR
	case proxy.LoadBalancer, proxy.NodePort:
		if r.preserves(port) {
			list = localOnly(list)
			dsr = dsr || f.Kind == proxy.LoadBalancer
		}
	case proxy.ExternalIP:
	}
	return list, dsr
}

// withholds reports whether a frontend is not served because HNS cannot check sources.
func (r *renderer) withholds(f *proxy.Frontend) bool {
	return f.Restricted && !r.options.ServeRestricted &&
		!slices.ContainsFunc(f.AllowedSources, func(p netip.Prefix) bool { return p.Bits() == 0 })
}

// answers reports whether node ports of a family answer at any address.
func answers(node *proxy.Node, family v1.IPFamily) bool {
	return node.NodePorts.All || slices.ContainsFunc(node.NodePorts.Prefixes, func(p netip.Prefix) bool {
		return ipaddr.FamilyOf(p.Addr()) == family && !p.Addr().IsLoopback()
	})
}

func localOnly(list []*endpoints.Endpoint) (local []*endpoints.Endpoint) {
	for _, e := range list {
		if e.Local {
			local = append(local, e)
		}
	}
	return local
}

// commonPort returns the endpoints of the port that most endpoints have, the lowest such port, and how
// many endpoints have another one: a load balancer has one port for all endpoints.
func commonPort(list []*endpoints.Endpoint) (common []*endpoints.Endpoint, port uint16, others int) {
	if len(list) == 0 {
		return nil, 0, 0
	}
	port = list[0].Addr.Port()
	if !slices.ContainsFunc(list, func(e *endpoints.Endpoint) bool { return e.Addr.Port() != port }) {
		return list, port, 0
	}
	counts := map[uint16]int{}
	for _, e := range list {
		counts[e.Addr.Port()]++
	}
	for p, n := range counts {
		if n > counts[port] || n == counts[port] && p < port {
			port = p
		}
	}
	for _, e := range list {
		if e.Addr.Port() == port {
			common = append(common, e)
		}
	}
	return common, port, len(list) - len(common)
}
