package differential

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	netutils "k8s.io/utils/net"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/proxy"
)

// decisions counts how often each difference from kube-proxy was needed.
type decisions struct{ counts map[string]int }

func newDecisions() *decisions { return &decisions{counts: map[string]int{}} }

func (d *decisions) countUse(name string, times int) {
	d.counts[name] += times
}

func (d *decisions) add(o *decisions) {
	for name, n := range o.counts {
		d.counts[name] += n
	}
}

// decision changes the expectation from the result of kube-proxy to what was decided, and
// gives how often it did.
type decision struct {
	name  string
	apply func(*expectation) int
}

// onObjects returns the names of the decisions about the objects that kube-proxy gets.
func onObjects() []string {
	return []string{"serviceDefaults", "usablePorts", "sliceDefaults", "hasMoved"}
}

// onResults returns the decisions about the results of kube-proxy, in the order in which they
// are applied.
func onResults() []decision {
	return []decision{
		{"unusableProtocols", unusableProtocols},
		{"unusableClusterIPs", unusableClusterIPs},
		{"unusableNumbers", unusableNumbers},
		{"unusableAddresses", unusableAddresses},
		{"closedRanges", closedRanges},
		{"oneFrontendAnAddress", oneFrontendAnAddress},
		{"oneOwnerAnAddress", oneOwnerAnAddress},
		{"affinityBounds", affinityBounds},
		{"unusableEndpoints", unusableEndpoints},
		{"namelessHints", namelessHints},
		{"preferredRecords", preferredRecords},
	}
}

func (e *expectation) decide() {
	e.countUse("withoutExternalIPs", withoutExternalIPs(e))
	for _, d := range onResults() {
		e.countUse(d.name, d.apply(e))
	}
	for _, p := range e.ports {
		for i := range p.frontends {
			e.allowOwnAddress(&p.frontends[i])
		}
	}
}

// allowOwnAddress does what the proxiers do in addition to the trackers: if the node is
// allowed, so is the frontend's own address, which may be an address of the node.
func (e *expectation) allowOwnAddress(f *frontend) {
	node := e.ours.snapshot.Node().Addresses
	if slices.ContainsFunc(node, func(a netip.Addr) bool { return contains(f.sources, a) }) {
		f.sources = widest(append(slices.Clone(f.sources), netip.PrefixFrom(f.addr, f.addr.BitLen())))
	}
}

func contains(all []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}

// serviceDefaults sets the defaults that the API server sets before it stores a Service: a
// type, a protocol, the timeout of the affinity. Without them, kube-proxy panics, or uses a
// protocol without a name. This repository sets the defaults itself.
func (d *decisions) serviceDefaults(s *v1.Service) *v1.Service {
	timeout := int32(affinity.DefaultTimeout / time.Second)
	isDue := s.Spec.Type == "" || slices.ContainsFunc(s.Spec.Ports, func(p v1.ServicePort) bool { return p.Protocol == "" })
	config := s.Spec.SessionAffinityConfig
	noTimeout := s.Spec.SessionAffinity == v1.ServiceAffinityClientIP &&
		(config == nil || config.ClientIP == nil || config.ClientIP.TimeoutSeconds == nil)
	if !isDue && !noTimeout {
		return s
	}
	d.countUse("serviceDefaults", 1)
	s = s.DeepCopy()
	if s.Spec.Type == "" {
		s.Spec.Type = v1.ServiceTypeClusterIP
	}
	if noTimeout {
		s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &timeout}}
	}
	for i := range s.Spec.Ports {
		if s.Spec.Ports[i].Protocol == "" {
			s.Spec.Ports[i].Protocol = v1.ProtocolTCP
		}
	}
	return s
}

// usablePorts drops ports that no dataplane can serve, because their number or their
// protocol is invalid: kube-proxy writes them into its rules, and the kernel then refuses
// all rules.
func (d *decisions) usablePorts(s *v1.Service) *v1.Service {
	isBad := func(p v1.ServicePort) bool { return p.Port < 1 || p.Port > 65535 || !isProtocol(p.Protocol) }
	if !slices.ContainsFunc(s.Spec.Ports, isBad) {
		return s
	}
	d.countUse("usablePorts", 1)
	s = s.DeepCopy()
	s.Spec.Ports = slices.DeleteFunc(s.Spec.Ports, isBad)
	return s
}

func isProtocol(p v1.Protocol) bool {
	return p == v1.ProtocolTCP || p == v1.ProtocolUDP || p == v1.ProtocolSCTP
}

// sliceDefaults does the same for an EndpointSlice: a port without a protocol is a TCP
// port, and one without a name is the one with the empty name.
func (d *decisions) sliceDefaults(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	if !slices.ContainsFunc(s.Ports, func(p discoveryv1.EndpointPort) bool {
		return p.Name == nil || p.Protocol == nil || *p.Protocol == ""
	}) {
		return s
	}
	d.countUse("sliceDefaults", 1)
	s = s.DeepCopy()
	s.Ports = defaultedPorts(s)
	return s
}

func defaultedPorts(s *discoveryv1.EndpointSlice) []discoveryv1.EndpointPort {
	out := slices.Clone(s.Ports)
	for i := range out {
		empty, tcp := "", v1.ProtocolTCP
		if out[i].Name == nil {
			out[i].Name = &empty
		}
		if out[i].Protocol == nil || *out[i].Protocol == "" {
			out[i].Protocol = &tcp
		}
	}
	return out
}

// hasMoved reports whether a slice belongs to another Service or family than before.
// kube-proxy keeps its endpoints under the old one for ever; this repository removes them.
func (d *decisions) hasMoved(old, now *discoveryv1.EndpointSlice) bool {
	if old == nil || old.AddressType == now.AddressType &&
		old.Labels[discoveryv1.LabelServiceName] == now.Labels[discoveryv1.LabelServiceName] {
		return false
	}
	d.countUse("hasMoved", 1)
	return true
}

// unusableProtocols drops ports of slices with an unknown protocol.
func unusableProtocols(e *expectation) int {
	n := len(e.endpoints)
	maps.DeleteFunc(e.endpoints, func(n proxy.ServicePortName, _ []*record) bool { return !isProtocol(n.Protocol) })
	return n - len(e.endpoints)
}

// unusableClusterIPs drops ports whose ClusterIP is not an address of the family, one that
// the API refuses everywhere (loopback, link-local, multicast), or not a valid destination.
// kube-proxy continues with an address that prints as <nil>.
func unusableClusterIPs(e *expectation) int {
	n := len(e.ports)
	maps.DeleteFunc(e.ports, func(n proxy.ServicePortName, p *expectedPort) bool { return !serveable(p.frontends[0], n.Family) })
	return n - len(e.ports)
}

// unusableNumbers drops invalid node ports and health check node ports: kube-proxy writes
// them into its rules, or truncates them to 16 bits.
func unusableNumbers(e *expectation) int {
	count := 0
	isBad := func(n int) bool { return n < 1 || n > 65535 }
	for _, p := range e.ports {
		n := len(p.frontends)
		p.frontends = slices.DeleteFunc(p.frontends, func(f frontend) bool { return isBad(f.number) })
		count += n - len(p.frontends)
		if p.healthCheckNodePort != 0 && isBad(p.healthCheckNodePort) {
			p.healthCheckNodePort = 0
			count++
		}
	}
	return count
}

// unusableAddresses drops external addresses that no other host can have: the
// unspecified one, loopback, link-local and multicast, 0.0.0.0/8 and the broadcast
// address; and external IPs of the reserved 240.0.0.0/4.
func unusableAddresses(e *expectation) int {
	count := 0
	for name, p := range e.ports {
		n := len(p.frontends)
		p.frontends = slices.DeleteFunc(p.frontends, func(f frontend) bool { return f.kind != proxy.NodePort && !serveable(f, name.Family) })
		count += n - len(p.frontends)
	}
	return count
}

// closedRanges allows no client if a list of source ranges has none of the family.
// kube-proxy then allows all clients.
func closedRanges(e *expectation) int {
	count := 0
	for name, p := range e.ports {
		if !hasRangesForOthers(e.cluster.services[name.NamespacedName], name.Family) {
			continue
		}
		for i := range p.frontends {
			if f := &p.frontends[i]; f.kind == proxy.LoadBalancer && !f.restricted {
				f.restricted = true
				count++
			}
		}
	}
	return count
}

// hasRangesForOthers reports whether a Service has source ranges, but none that allows all
// clients of a family.
func hasRangesForOthers(s *v1.Service, family v1.IPFamily) bool {
	found := false
	for _, text := range s.Spec.LoadBalancerSourceRanges {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		found = true
		_, n, err := netutils.ParseCIDRSloppy(text)
		if err != nil {
			continue
		}
		if ones, _ := n.Mask.Size(); ones == 0 && netutils.IsIPv4CIDR(n) == (family == v1.IPv4Protocol) {
			return false
		}
	}
	return found
}
