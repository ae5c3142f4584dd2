//go:build ipvs

package ipvsmode

import (
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/testing/objects"
)

const (
	nodeName   = "here"
	nodeIP     = "192.0.2.1"
	nodeIP6    = "2001:db8::1"
	clientIP   = "192.0.2.2"
	clientIP6  = "2001:db8::2"
	gatewayIP  = "10.244.0.1"
	gatewayIP6 = "fd00:244::1"
	podRange   = "10.244.0.0/16"
	podRange6  = "fd00:244::/48"
	podPort    = 8080
)

// podIPs are the addresses of the endpoints. The second one is on this node.
func podIPs(ipv6 bool) []string {
	if ipv6 {
		return []string{"fd00:244::2", "fd00:244::3"}
	}
	return []string{"10.244.0.2", "10.244.0.3"}
}

// everyKind returns Services of all kinds, and their EndpointSlices. A Service whose name begins with
// remote has no endpoint on this node.
func everyKind() (services []*v1.Service, slices []*discoveryv1.EndpointSlice) {
	for _, s := range []*v1.Service{
		service("web", "10.96.0.1", objects.NodePort(30080), objects.ExternalIPs("203.0.113.1"), balanced("203.0.113.2", 0)),
		service("local", "10.96.0.2", objects.NodePort(30081), balanced("203.0.113.3", 30100), objects.ExternalLocal),
		service("ranges", "10.96.0.3", balanced("203.0.113.4", 0), objects.SourceRanges(clientIP+"/32")),
		service("sticky", "10.96.0.4", objects.Sticky(600)),
		service("dns", "10.96.0.5", objects.Ports("main 80/UDP")),
		service("idle", "10.96.0.6"),
		service("internal", "10.96.0.7", objects.InternalLocal),
		service("remote", "10.96.0.8", objects.NodePort(30083), balanced("203.0.113.5", 30101), objects.ExternalLocal),
		service("remote-internal", "10.96.0.9", objects.InternalLocal),
		service("denied", "10.96.0.10", balanced("203.0.113.6", 0), objects.SourceRanges("198.51.100.0/24")),
		service("six", "fd00:96::1", objects.NodePort(30082), objects.ExternalIPs("2001:db8:1::1"), balanced("2001:db8:1::2", 0)),
	} {
		services = append(services, s)
		if s.Name != "idle" {
			slices = append(slices, slice(s))
		}
	}
	return services, slices
}

// balanced makes a load balancer.
func balanced(ip string, healthCheckNodePort int32) objects.Edit {
	return func(s *v1.Service) {
		objects.LoadBalancer(ip)(s)
		s.Spec.HealthCheckNodePort, s.Spec.ExternalTrafficPolicy = healthCheckNodePort, v1.ServiceExternalTrafficPolicyCluster
		s.Status.LoadBalancer.Ingress[0].IPMode = new(v1.LoadBalancerIPModeVIP)
	}
}

func service(name, ip string, edits ...objects.Edit) *v1.Service {
	return objects.Service(name, ip, append([]objects.Edit{objects.Ports("main 80"), func(s *v1.Service) {
		s.UID, s.Spec.IPFamilies = "1", []v1.IPFamily{ipaddr.FamilyOf(netip.MustParseAddr(ip))}
		s.Spec.SessionAffinity, s.Spec.InternalTrafficPolicy = v1.ServiceAffinityNone, new(v1.ServiceInternalTrafficPolicyCluster)
	}}, edits...)...)
}

func slice(s *v1.Service) *discoveryv1.EndpointSlice {
	ips := podIPs(s.Spec.IPFamilies[0] == v1.IPv6Protocol)
	list := []string{ips[0] + " R @node-0", ips[1] + " R @" + nodeName}
	if strings.HasPrefix(s.Name, "remote") {
		list = list[:1]
	}
	out := objects.Slice(s.Name+"-1", s.Name, list...)
	out.Ports = objects.SlicePorts(fmt.Sprintf("main %d/%s", podPort, s.Spec.Ports[0].Protocol))
	return out
}
