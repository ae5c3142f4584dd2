package endpoints

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// oracle keeps the API objects and computes everything from them in each call.
type oracle struct {
	view    View
	objects map[types.NamespacedName]*discoveryv1.EndpointSlice
}

func newOracle(view View) *oracle {
	return &oracle{view: view, objects: map[types.NamespacedName]*discoveryv1.EndpointSlice{}}
}

func (o *oracle) update(s *discoveryv1.EndpointSlice) {
	o.objects[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}] = s.DeepCopy()
}

// records returns all usable records of all ports, in order.
func (o *oracle) records() map[ServicePortName][]*Endpoint {
	out := map[ServicePortName][]*Endpoint{}
	for _, s := range o.objects {
		service := s.Labels[discoveryv1.LabelServiceName]
		family := v1.IPFamily(s.AddressType)
		if s.Name == "" || s.Namespace == "" || service == "" || family != v1.IPv4Protocol && family != v1.IPv6Protocol {
			continue
		}
		for _, n := range usablePorts(s) {
			key := ServicePortName{NamespacedName: types.NamespacedName{Namespace: s.Namespace, Name: service}, Port: n.name, Protocol: n.protocol, Family: family}
			for i := range s.Endpoints {
				if e, ok := o.endpointOf(&s.Endpoints[i], family, n.number); ok {
					out[key] = append(out[key], &e)
				}
			}
		}
	}
	for _, list := range out {
		sortEndpoints(list)
	}
	return out
}

// usablePorts returns the valid ports of a slice, each once.
func usablePorts(s *discoveryv1.EndpointSlice) []portNumber {
	var out []portNumber
	for _, p := range s.Ports {
		n := portNumber{name: deref(p.Name), protocol: deref(p.Protocol), number: uint16(deref(p.Port))}
		if n.protocol == "" {
			n.protocol = v1.ProtocolTCP
		}
		known := slices.Contains([]v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP}, n.protocol)
		if !known || n.number == 0 || int32(n.number) != deref(p.Port) || slices.Contains(out, n) {
			continue
		}
		out = append(out, n)
	}
	return out
}

func (o *oracle) endpointOf(e *discoveryv1.Endpoint, family v1.IPFamily, port uint16) (Endpoint, bool) {
	if len(e.Addresses) == 0 {
		return Endpoint{}, false
	}
	addr, err := parseAddr(e.Addresses[0], family)
	if err != nil {
		return Endpoint{}, false
	}
	out := Endpoint{Addr: netip.AddrPortFrom(addr, port), NodeName: deref(e.NodeName), Ready: true, Serving: true}
	if c := e.Conditions.Ready; c != nil {
		out.Ready = *c
	}
	if c := e.Conditions.Serving; c != nil {
		out.Serving = *c
	}
	out.Terminating = deref(e.Conditions.Terminating)
	out.Local = out.NodeName != "" && out.NodeName == o.view.NodeName
	if e.Hints == nil {
		return out, true
	}
	var zones, nodes []string
	for _, z := range e.Hints.ForZones {
		zones = append(zones, z.Name)
	}
	for _, n := range e.Hints.ForNodes {
		nodes = append(nodes, n.Name)
	}
	out.ZoneHint, out.NodeHint = hintFor(zones, o.view.Zone), hintFor(nodes, o.view.NodeName)
	return out, true
}

func hintFor(names []string, here string) Hint {
	switch {
	case len(names) == 0:
		return HintNone
	case here != "" && slices.Contains(names, here):
		return HintHere
	}
	return HintElsewhere
}

// published returns the first record of each address.
func published(records []*Endpoint) []*Endpoint {
	return slices.CompactFunc(slices.Clone(records), func(a, b *Endpoint) bool { return a.Addr == b.Addr })
}

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
