package differential

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	kube "k8s.io/kubernetes/pkg/proxy"

	"github.com/vipkit/vipkit/proxy"
)

// portState is the result of one side for one port of a Service.
type portState struct {
	Frontends                           []string
	Affinity                            time.Duration
	InternalLocal, ExternalLocal        bool
	HealthCheckNodePort                 int
	HasEndpoints                        bool
	Cluster, Local, Reachable, Verdicts []string
}

// expectation is the result of kube-proxy, to which decisions are applied.
type expectation struct {
	*decisions
	cluster  *cluster
	topology map[string]string
	ours     *vipkit
	// ask says that the verdicts of packets are compared, too, which takes longer.
	ask       bool
	ports     map[proxy.ServicePortName]*expectedPort
	endpoints map[proxy.ServicePortName][]*record
}

// expectedPort is a port of a Service.
type expectedPort struct {
	kube      kube.ServicePort
	frontends []frontend
	// external says that the port has a frontend besides the ClusterIP, even if another
	// Service owns its address.
	external bool
	// externalLocal says that the external traffic policy is Local.
	externalLocal       bool
	affinity            time.Duration
	healthCheckNodePort int
}

// frontend is an address and port, which may be invalid.
type frontend struct {
	kind       proxy.FrontendKind
	addr       netip.Addr
	number     int
	restricted bool
	sources    []netip.Prefix
}

// expectation reads the state of kube-proxy, and applies all decisions to it.
func (k *kubeProxy) expectation(c *cluster, ours *vipkit, ask bool) *expectation {
	e := &expectation{
		decisions: k.decisions, cluster: c, topology: k.topology, ours: ours, ask: ask,
		ports: map[proxy.ServicePortName]*expectedPort{}, endpoints: map[proxy.ServicePortName][]*record{},
	}
	for _, family := range families() {
		for name, port := range k.perFamily[family].services {
			e.ports[nameIn(family, name)] = readPort(port, family)
		}
		for name, list := range k.perFamily[family].endpoints {
			for _, endpoint := range list {
				e.endpoints[nameIn(family, name)] = append(e.endpoints[nameIn(family, name)], readRecord(endpoint))
			}
		}
	}
	e.decide()
	return e
}

func nameIn(family v1.IPFamily, n kube.ServicePortName) proxy.ServicePortName {
	return proxy.ServicePortName{NamespacedName: n.NamespacedName, Port: n.Port, Protocol: n.Protocol, Family: family}
}

func readPort(p kube.ServicePort, family v1.IPFamily) *expectedPort {
	out := &expectedPort{kube: p, externalLocal: p.ExternalPolicyLocal(), healthCheckNodePort: p.HealthCheckNodePort()}
	add := func(kind proxy.FrontendKind, number int, sources []netip.Prefix, addrs ...net.IP) {
		for _, ip := range addrs {
			a, _ := netip.AddrFromSlice(ip)
			out.frontends = append(out.frontends, frontend{kind: kind, addr: a.Unmap(), number: number, restricted: len(sources) > 0, sources: sources})
		}
	}
	add(proxy.ClusterIP, p.Port(), nil, p.ClusterIP())
	add(proxy.ExternalIP, p.Port(), nil, p.ExternalIPs()...)
	add(proxy.LoadBalancer, p.Port(), readRanges(p.LoadBalancerSourceRanges()), p.LoadBalancerVIPs()...)
	if p.NodePort() != 0 {
		add(proxy.NodePort, p.NodePort(), nil, unspecified(family).AsSlice())
	}
	if p.SessionAffinityType() == v1.ServiceAffinityClientIP {
		out.affinity = time.Duration(p.StickyMaxAgeSeconds()) * time.Second
	}
	return out
}

func unspecified(family v1.IPFamily) netip.Addr {
	if family == v1.IPv4Protocol {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// readRanges returns the ranges without those that are within others, which does not change
// what they allow.
func readRanges(list []*net.IPNet) []netip.Prefix {
	var all []netip.Prefix
	for _, n := range list {
		ip, _ := netip.AddrFromSlice(n.IP)
		ones, bits := n.Mask.Size()
		if ip = ip.Unmap(); ip.Is4() && bits == 128 {
			ones -= 96
		}
		all = append(all, netip.PrefixFrom(ip, ones))
	}
	return widest(all)
}

func widest(all []netip.Prefix) []netip.Prefix {
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		return cmp.Or(cmp.Compare(a.Bits(), b.Bits()), a.Addr().Compare(b.Addr()))
	})
	var out []netip.Prefix
	for _, p := range all {
		if !slices.ContainsFunc(out, func(o netip.Prefix) bool { return o.Contains(p.Addr()) }) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return out
}

// String returns the frontend in one line, with the clients that it allows.
func (f frontend) String() string {
	if !f.restricted {
		return fmt.Sprintf("%s %s:%d", f.kind, f.addr, f.number)
	}
	return fmt.Sprintf("%s %s:%d for %v", f.kind, f.addr, f.number, f.sources)
}

// portStates returns the expected result for all ports.
func (e *expectation) portStates() map[proxy.ServicePortName]*portState {
	all := map[proxy.ServicePortName]*portState{}
	for name, port := range e.ports {
		p := &portState{
			Affinity:            port.affinity,
			InternalLocal:       port.kube.InternalPolicyLocal(),
			ExternalLocal:       port.externalLocal,
			HealthCheckNodePort: port.healthCheckNodePort,
		}
		var list []kube.Endpoint
		for _, r := range e.endpoints[name] {
			list = append(list, r)
		}
		cluster, local, reachable, hasAny := kube.CategorizeEndpoints(list, port.asServicePort(), nodeName, e.topology)
		p.HasEndpoints, p.Cluster, p.Local, p.Reachable = hasAny, addresses(cluster), addresses(local), addresses(reachable)
		for _, f := range port.frontends {
			p.Frontends = append(p.Frontends, f.String())
			if e.ask {
				p.Verdicts = append(p.Verdicts, e.verdicts(p, f)...)
			}
		}
		slices.Sort(p.Frontends)
		slices.Sort(p.Verdicts)
		all[name] = p
	}
	return all
}

// endpointStates returns the expected endpoints of all ports that have any, even if their
// Service does not exist.
func (e *expectation) endpointStates() map[proxy.ServicePortName][]string {
	all := map[proxy.ServicePortName][]string{}
	for name, list := range e.endpoints {
		if len(list) > 0 {
			all[name] = recordLines(list, e.topology[v1.LabelTopologyZone])
		}
	}
	return all
}

// asServicePort returns the port of kube-proxy, unless a decision has changed how it can be
// reached from outside, or load balancers check for local endpoints: kube-proxy counts these
// apart from the endpoints that a port uses.
func (p *expectedPort) asServicePort() kube.ServicePort {
	isChecked := p.healthCheckNodePort != 0
	if p.external == p.kube.ExternallyAccessible() && p.externalLocal == p.kube.ExternalPolicyLocal() && !isChecked {
		return p.kube
	}
	return changedPort{p.kube, p.external, p.externalLocal, isChecked}
}

// changedPort is a port that a decision has changed.
type changedPort struct {
	kube.ServicePort
	external, externalLocal, isChecked bool
}

func (p changedPort) ExternallyAccessible() bool { return p.external }
func (p changedPort) ExternalPolicyLocal() bool  { return p.externalLocal }
func (p changedPort) UsesClusterEndpoints() bool { return !p.InternalPolicyLocal() || p.external }
func (p changedPort) UsesLocalEndpoints() bool {
	return p.InternalPolicyLocal() || p.externalLocal && p.external || p.isChecked
}

func addresses(list []kube.Endpoint) []string {
	var out []string
	for _, e := range list {
		out = append(out, e.String())
	}
	slices.Sort(out)
	return out
}
