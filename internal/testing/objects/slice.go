package objects

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Letter is a letter that stands for the conditions of an endpoint.
type Letter struct {
	Letter                      string
	Ready, Serving, Terminating bool
}

// Letters returns a letter for each combination of conditions.
func Letters() []Letter {
	return []Letter{
		{"R", true, true, false},   // ready
		{"U", false, false, false}, // not ready
		{"T", false, true, true},   // serving and terminating
		{"X", false, false, true},  // terminating, no longer serving
		{"P", true, true, true},    // ready although terminating
		{"N", true, false, false},  // ready without serving
		{"S", false, true, false},  // serving, not ready
		{"Q", true, false, true},   // as N, and terminating
	}
}

// ConditionsOf returns the conditions that a letter stands for.
func ConditionsOf(letter string) Letter {
	for _, l := range Letters() {
		if l.Letter == letter {
			return l
		}
	}
	panic(fmt.Sprintf("no conditions %q", letter))
}

// Slice makes an EndpointSlice of a Service, in whose namespace it is, with the port "http 8080"
// and the family of the first endpoint.
func Slice(name, service string, endpoints ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: meta(name), AddressType: discoveryv1.AddressTypeIPv4, Ports: SlicePorts("http 8080")}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: service}
	for _, e := range endpoints {
		s.Endpoints = append(s.Endpoints, Endpoint(e))
	}
	if len(endpoints) > 0 && strings.Contains(s.Endpoints[0].Addresses[0], ":") {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	return s
}

// SlicePorts makes the ports of an EndpointSlice.
func SlicePorts(texts ...string) (all []discoveryv1.EndpointPort) {
	for _, text := range texts {
		name, numbers, protocol := cutPort(text)
		all = append(all, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: new(number(numbers))})
	}
	return all
}

// Endpoint makes the endpoint of a text.
func Endpoint(text string) discoveryv1.Endpoint {
	words := strings.Fields(text)
	e := discoveryv1.Endpoint{Addresses: words[:1:1]}
	for _, w := range words[1:] {
		zones, isZones := strings.CutPrefix(w, "zones=")
		nodes, isNodes := strings.CutPrefix(w, "nodes=")
		if (isZones || isNodes) && e.Hints == nil {
			e.Hints = &discoveryv1.EndpointHints{}
		}
		switch {
		case isZones:
			for z := range strings.SplitSeq(zones, ",") {
				e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: z})
			}
		case isNodes:
			for n := range strings.SplitSeq(nodes, ",") {
				e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: n})
			}
		case w[0] == '@':
			e.NodeName = new(w[1:])
		default:
			l := ConditionsOf(w)
			e.Conditions = discoveryv1.EndpointConditions{Ready: &l.Ready, Serving: &l.Serving, Terminating: &l.Terminating}
		}
	}
	return e
}

// Node makes a Node in a zone, unless that is empty, with internal addresses.
func Node(name, zone string, addrs ...string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if zone != "" {
		n.Labels = map[string]string{v1.LabelTopologyZone: zone}
	}
	for _, a := range addrs {
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a})
	}
	return n
}

// Handler receives objects, as a tracker does.
type Handler interface {
	// UpdateService receives a new or changed Service.
	UpdateService(*v1.Service)
	// UpdateEndpointSlice receives a new or changed EndpointSlice.
	UpdateEndpointSlice(*discoveryv1.EndpointSlice)
	// UpdateNode receives a new or changed Node.
	UpdateNode(*v1.Node)
}

// Hand hands Services, EndpointSlices and Nodes to a handler.
func Hand(h Handler, all ...metav1.Object) {
	for _, o := range all {
		switch o := o.(type) {
		case *v1.Service:
			h.UpdateService(o)
		case *discoveryv1.EndpointSlice:
			h.UpdateEndpointSlice(o)
		case *v1.Node:
			h.UpdateNode(o)
		default:
			panic(fmt.Sprintf("object of type %T", o))
		}
	}
}

// Edited returns a changed copy of an EndpointSlice.
func Edited(s *discoveryv1.EndpointSlice, edit func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	s = s.DeepCopy()
	edit(s)
	return s
}
