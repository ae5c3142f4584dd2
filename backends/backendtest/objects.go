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

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/proxy"
)

// parseObjects reads Services and EndpointSlices of IPv4, and adds to each its
// counterpart of IPv6. Nodes have the addresses of both families.
func parseObjects(data []byte) (cluster.Objects, error) {
	var out cluster.Objects
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
			out.Services = append(out.Services, s, cluster.IPv6Service(s))
		case "EndpointSlice":
			s := new(discoveryv1.EndpointSlice)
			if err := yaml.UnmarshalStrict(doc, s); err != nil {
				return out, err
			}
			out.Slices = append(out.Slices, s, cluster.IPv6Slice(s))
		case "Node":
			n := new(v1.Node)
			if err := yaml.UnmarshalStrict(doc, n); err != nil {
				return out, err
			}
			out.Nodes = append(out.Nodes, n)
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

// frontend returns the first frontend of the first Service by its kind, for IPv4.
func frontend(o *cluster.Objects, kind string) (netip.AddrPort, error) {
	if len(o.Services) == 0 {
		return netip.AddrPort{}, errors.New("no Service")
	}
	s := o.Services[0]
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
