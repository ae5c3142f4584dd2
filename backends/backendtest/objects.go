package backendtest

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/vipkit/vipkit/proxy"
)

// objects are API objects of one family or both.
type objects struct {
	services []*v1.Service
	slices   []*discoveryv1.EndpointSlice
	nodes    []*v1.Node
}

// parseObjects reads Services and EndpointSlices of IPv4, and adds to each its
// counterpart of IPv6. Nodes have the addresses of both families.
func parseObjects(data []byte) (objects, error) {
	var out objects
	for doc := range bytes.SplitSeq(data, []byte("\n---\n")) {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			return out, err
		}
		switch kind.Kind {
		case "Service":
			s := new(v1.Service)
			if err := yaml.UnmarshalStrict(doc, s); err != nil {
				return out, err
			}
			out.services = append(out.services, s, ipv6ServiceOf(s))
		case "EndpointSlice":
			s := new(discoveryv1.EndpointSlice)
			if err := yaml.UnmarshalStrict(doc, s); err != nil {
				return out, err
			}
			out.slices = append(out.slices, s, ipv6SliceOf(s))
		case "Node":
			n := new(v1.Node)
			if err := yaml.UnmarshalStrict(doc, n); err != nil {
				return out, err
			}
			out.nodes = append(out.nodes, n)
		default:
			return out, fmt.Errorf("unknown kind %q", kind.Kind)
		}
	}
	return out, nil
}

// tracking is a [proxy.ServiceChangeTracker], perhaps one that ignores some objects.
type tracking interface {
	proxy.Source
	proxy.ServiceHandler
	UpdateNode(*v1.Node)
	Synced()
}

// handTo updates a tracker with all objects.
func (o *objects) handTo(t tracking) {
	for _, s := range o.services {
		t.UpdateService(s)
	}
	for _, s := range o.slices {
		t.UpdateEndpointSlice(s)
	}
	for _, n := range o.nodes {
		t.UpdateNode(n)
	}
}

// frontend returns the first frontend of the first Service by its kind, for IPv4.
func (o *objects) frontend(kind string) (netip.AddrPort, error) {
	if len(o.services) == 0 {
		return netip.AddrPort{}, errors.New("no Service")
	}
	s := o.services[0]
	port := uint16(s.Spec.Ports[0].Port)
	text := ""
	switch kind {
	case "cluster":
		text = s.Spec.ClusterIP
	case "external":
		text = s.Spec.ExternalIPs[0]
	case "lb":
		text = s.Status.LoadBalancer.Ingress[0].IP
	case "nodeport":
		return netip.AddrPortFrom(netip.MustParseAddr("172.18.0.2"), uint16(s.Spec.Ports[0].NodePort)), nil
	default:
		return netip.AddrPort{}, fmt.Errorf("unknown kind of frontend %q", kind)
	}
	a, err := netip.ParseAddr(text)
	return netip.AddrPortFrom(a, port), err
}

const ipv6Suffix = "-v6"

func ipv6TextOf(addr string) string { return ipv6Of(netip.MustParseAddr(addr)).String() }

// ipv6ServiceOf returns the same Service for IPv6, under another name.
func ipv6ServiceOf(s *v1.Service) *v1.Service {
	t := s.DeepCopy()
	t.Name += ipv6Suffix
	t.Spec.ClusterIP = ipv6TextOf(s.Spec.ClusterIP)
	for i, a := range t.Spec.ExternalIPs {
		t.Spec.ExternalIPs[i] = ipv6TextOf(a)
	}
	for i, r := range t.Spec.LoadBalancerSourceRanges {
		t.Spec.LoadBalancerSourceRanges[i] = counterpartPrefix(netip.MustParsePrefix(r)).String()
	}
	for i, in := range t.Status.LoadBalancer.Ingress {
		t.Status.LoadBalancer.Ingress[i].IP = ipv6TextOf(in.IP)
	}
	return t
}

func ipv6SliceOf(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	t := s.DeepCopy()
	t.Name += ipv6Suffix
	t.Labels[discoveryv1.LabelServiceName] += ipv6Suffix
	t.AddressType = discoveryv1.AddressTypeIPv6
	for i := range t.Endpoints {
		for j, a := range t.Endpoints[i].Addresses {
			t.Endpoints[i].Addresses[j] = ipv6TextOf(a)
		}
	}
	return t
}
